"""Settings that were written for a run and would have no effect in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from algorithm.annotations import Condition, ForActions, OnlyIf, Unless
from algorithm.cli.options import FLAGS
from algorithm.config.loader import Settings
from algorithm.config.registry import AGENTS
from algorithm.config.trees import Layer, Tree, iterate_leaves
from algorithm.errors import UserError
from algorithm.specs import Role

# Sections that depend on another one; settings of one section are annotated where their type is.
ALGORITHM_CONDITIONS: Mapping[str, Condition] = {f"{name.lower()}_config": OnlyIf(algorithm=name) for name in AGENTS}
AGENT_CONDITIONS: Mapping[str, Condition] = {"replay_config": Unless(replay_ratio=0)}


def check_effects(settings: Settings, layers: Sequence[Layer]) -> None:
    """Raise UserError if a setting of `layers`, which were written for this run, has no effect in it."""
    for source, tree in layers:
        _check_tree(settings, source, "", tree)
        for role, role_tree in (tree.get("ma_config") or {}).items():
            _check_tree(settings.for_role(role), source, f"ma_config.{role}.", role_tree)


def check_action_effects(settings: Settings, roles: Mapping[str, Role]) -> None:
    """Raise UserError if a setting of the command line has no effect on the actions of any role."""
    for source, tree in settings.command_line_layers:
        for path in iterate_leaves(tree):
            section, _, key = path.partition(".")
            if section != f"{settings.base.algorithm.lower()}_config":
                continue
            hint = get_type_hints(type(settings.agent), include_extras=True).get(key)
            for condition in getattr(hint, "__metadata__", ()):
                if isinstance(condition, ForActions) and (
                    failure := condition.explain_failure(role.action_spec for role in roles.values())
                ):
                    raise UserError(f"{source}: {path} {failure}")


def _check_tree(settings: Settings, source: str, prefix: str, tree: Tree) -> None:
    for path in iterate_leaves(tree):
        if failure := find_failure(settings, path):
            flag = FLAGS.get(path) if source == "the command line" else None
            raise UserError(f"{flag or f'{source}: {prefix}{path}'} {failure}")


def find_failure(settings: Settings, path: str) -> str | None:
    """Return why the setting `path` has no effect, to follow its name; None if it has one."""
    section, *keys = path.split(".")
    agent_section = f"{settings.base.algorithm.lower()}_config"
    if section in ALGORITHM_CONDITIONS and (failure := ALGORITHM_CONDITIONS[section].explain_failure(settings.base)):
        return failure
    if section in AGENT_CONDITIONS and hasattr(settings.agent, "replay_ratio"):
        if failure := AGENT_CONDITIONS[section].explain_failure(settings.agent):
            return failure
    section_settings: Any = {
        "base_config": settings.base,
        "replay_config": settings.replay,
        agent_section: settings.agent,
    }.get(section)
    for key in keys:
        hints = get_type_hints(type(section_settings), include_extras=True)
        if key not in hints:
            return None
        for condition in getattr(hints[key], "__metadata__", ()):
            if isinstance(condition, Condition) and (failure := condition.explain_failure(section_settings)):
                return failure
        section_settings = getattr(section_settings, key)
    return None
