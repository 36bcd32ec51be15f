"""Settings that were written for a run and would have no effect in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from algorithm.annotations import Condition, ForActions, Only, Unless
from algorithm.cli.options import FLAGS
from algorithm.config.loader import Settings
from algorithm.config.registry import AGENTS
from algorithm.config.trees import Layer, Tree, leaves
from algorithm.errors import UserError
from algorithm.specs import Role

# Sections that depend on another one; settings of one section are annotated where their type is.
OF_ALGORITHMS: Mapping[str, Condition] = {f"{name.lower()}_config": Only(algorithm=name) for name in AGENTS}
OF_AGENT: Mapping[str, Condition] = {"replay_config": Unless(replay_ratio=0)}


def check_effects(settings: Settings, layers: Sequence[Layer]) -> None:
    """Raise UserError if a setting of `layers`, which were written for this run, has no effect in it."""
    for source, tree in layers:
        _check(settings, source, "", tree)
        for role, own in (tree.get("ma_config") or {}).items():
            _check(settings.of(role), source, f"ma_config.{role}.", own)


def check_action_effects(settings: Settings, roles: Mapping[str, Role]) -> None:
    """Raise UserError if a setting of the command line has no effect on the actions of any role."""
    for source, tree in settings.given:
        for path in leaves(tree):
            section, _, key = path.partition(".")
            if section != f"{settings.base.algorithm.lower()}_config":
                continue
            hint = get_type_hints(type(settings.agent), include_extras=True).get(key)
            for condition in getattr(hint, "__metadata__", ()):
                if isinstance(condition, ForActions) and (
                    failure := condition.failure(role.action_spec for role in roles.values())
                ):
                    raise UserError(f"{source}: {path} {failure}")


def _check(settings: Settings, source: str, prefix: str, tree: Tree) -> None:
    for path in leaves(tree):
        if failure := find_failure(settings, path):
            flag = FLAGS.get(path) if source == "the command line" else None
            raise UserError(f"{flag or f'{source}: {prefix}{path}'} {failure}")


def find_failure(settings: Settings, path: str) -> str | None:
    """Return why the setting `path` has no effect, to follow its name; None if it has one."""
    section, *keys = path.split(".")
    own = f"{settings.base.algorithm.lower()}_config"
    if section in OF_ALGORITHMS and (failure := OF_ALGORITHMS[section].failure(settings.base)):
        return failure
    if section in OF_AGENT and hasattr(settings.agent, "replay_ratio"):
        if failure := OF_AGENT[section].failure(settings.agent):
            return failure
    place: Any = {"base_config": settings.base, "replay_config": settings.replay, own: settings.agent}.get(section)
    for key in keys:
        hints = get_type_hints(type(place), include_extras=True)
        if key not in hints:
            return None
        for condition in getattr(hints[key], "__metadata__", ()):
            if isinstance(condition, Condition) and (failure := condition.failure(place)):
                return failure
        place = getattr(place, key)
    return None
