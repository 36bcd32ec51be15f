"""Settings that were written for a run and have no effect in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from algorithm.annotations import Condition, ForActions, OnlyIf, Unless, get_annotations
from algorithm.config.loader import AGENT_KEY, Settings
from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.sections import ON_RAY
from algorithm.config.yaml_layers import Layer, Tree, iterate_leaves
from algorithm.errors import UserError
from algorithm.specs import ActionSpec, Role

# Conditions of sections and settings on `base_config`; the conditions of a setting are annotated on its field.
ALGORITHM_CONDITIONS: Mapping[str, Condition] = {
    **{get_agent_section(name): OnlyIf(algorithm=name) for name in AGENTS},
    "cluster_config": OnlyIf(runtime="CLUSTER"),
    "population_config.cpus_per_member": OnlyIf(runtime="CLUSTER"),
    "population_config.gpus_per_member": OnlyIf(runtime="CLUSTER"),
    "tracker_config": Unless(tracker="none"),
}
# Settings of cluster_config for the members of a population; the others are for rollout actors.
CLUSTER_SETTINGS_OF_MEMBERS = ("host", "address", "timeout", "start_timeout", "token_auth")
HOST_CONDITIONS: Mapping[str, Condition] = {  # on `cluster_config`
    "population_config.cpus_per_member": ON_RAY,
    "population_config.gpus_per_member": ON_RAY,
}


def check_effects(settings: Settings, layers: Sequence[Layer], roles: Mapping[str, Role] | None = None) -> None:
    """Check that every setting of `layers`, which were written for a run, has an effect in it.

    Args:
        settings: Settings of the run.
        layers: Layers to check.
        roles: Roles of the environment; None before they are known, which leaves out the conditions on actions.

    Raises:
        UserError: A setting has no effect.
    """
    specs = None if roles is None else [role.action_spec for role in roles.values()]
    for source, tree in layers:
        _check_tree(settings, tree, f"{source}: ", specs)
        for name, sections in (tree.get("ma_config") or {}).items():
            role_specs = [roles[name].action_spec] if roles and name in roles else None
            _check_tree(settings.for_role(name), sections, f"{source}: ma_config.{name}.", role_specs)


def _check_tree(settings: Settings, tree: Tree, prefix: str, specs: Sequence[ActionSpec] | None) -> None:
    for path in iterate_leaves(tree):
        if failure := find_failure(settings, path, specs):
            raise UserError(f"{prefix}{path} {failure}")


def find_failure(settings: Settings, path: str, specs: Sequence[ActionSpec] | None = None) -> str | None:
    """Return why the setting `path` has no effect, to follow its name; None if it has an effect.

    `specs` are the action specs of the agents; None leaves out the conditions on actions.
    """
    section, _, key = path.partition(".")
    is_population = settings.population.size is not None
    if is_population and section == "cluster_config" and key not in (*CLUSTER_SETTINGS_OF_MEMBERS, ""):
        return "is for rollout actors, which the members of a population do not have, and so has no effect"
    for annotation, owner in iterate_annotations(settings, path):
        failure = None
        if isinstance(annotation, Condition):
            failure = annotation.explain_failure(owner)
        elif isinstance(annotation, ForActions) and specs is not None:
            failure = annotation.explain_failure(specs)
        if failure:
            return failure
    return None


def iterate_annotations(settings: Settings, path: str) -> Iterator[tuple[Any, Any]]:
    """Yield each annotation on the setting `path` and on its sections, with the object whose fields it refers to."""
    section, *keys = path.split(".")
    for name in (section, path):
        if name in ALGORITHM_CONDITIONS:
            yield ALGORITHM_CONDITIONS[name], settings.base
        if name in HOST_CONDITIONS:
            yield HOST_CONDITIONS[name], settings.cluster
    if section == "replay_config":
        if settings.agent.uses_replay:
            yield Unless(replay_ratio=0), settings.agent
        else:
            yield Unless(algorithm=settings.base.algorithm), settings.base
    owner: Any = settings
    for key in (settings.find_field(section), *keys):
        for annotation in get_annotations(owner.__class__).get(key, ()):
            yield annotation, owner
        owner = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)


def check_teams(agent: str, role: Role, configured: Collection[str]) -> None:
    """Raise UserError for a team that is `configured` although an agent of another name plays it."""
    for team in role.count_lanes_by_team(agent):
        if team != agent and team in configured:
            raise UserError(
                f"ma_config.{team} has no effect: {team} is played by the agent {agent}; "
                f"write ma_config.{agent}, or give {team} its own agent: ma_config.{team}.{AGENT_KEY}={team}"
            )


def list_unknown_roles(ma_config: Mapping[str, Any], roles: Mapping[str, Role]) -> Iterator[str]:
    """Yield a line for each name in `ma_config` that no agent and no team has."""
    known = dict.fromkeys(name for agent, role in roles.items() for name in (agent, *role.count_lanes_by_team(agent)))
    for name in ma_config:
        if name not in known:
            yield f"ma_config.{name}: no role has this name so far; the roles are {', '.join(known)}"
