"""The demonstrations of a run: its sources, and the checks that they fit its roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.atomic_io import resolve_inside
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.demonstrations import SUFFIX, Demonstrations, read_recording
from algorithm.errors import UserError
from algorithm.parts.run_folder import MINARI, RunFolder, describe_specs, is_demonstration_file
from algorithm.program import role_suffix
from algorithm.replay import DemonstrationReplay
from algorithm.specs import ACTION_MASK, Role, drop_team
from algorithm.training.batch_scheduler import DemonstrationShare
from algorithm.training.learner import Learner

SETTING = "demonstration_config.sources"


def read_demonstrations(source: str | Path) -> dict[str, Demonstrations]:
    """Return the demonstrations of a file or a dataset, by role.

    Args:
        source: a recording (.npz), a file of Unity's recorder (.demo), or `minari:ID`, a dataset of Minari on this
            machine.

    Raises:
        UserError: it is missing, damaged, empty, or of another kind.
    """
    text = str(source)
    if not is_demonstration_file(text):
        return find_class("demonstrations", "minari")(text.removeprefix(MINARI))
    suffix = Path(source).suffix
    if suffix == SUFFIX:
        return read_recording(Path(source))
    if suffix == ".demo":
        return find_class("demonstrations", "demo")(Path(source))
    raise UserError(f"{text}: demonstrations are files {SUFFIX} or .demo, or minari:ID for a dataset of Minari")


def select_demonstrations(settings: Settings, folder: RunFolder, name: str, role: Role) -> Demonstrations | None:
    """Return the demonstrations of a role from all sources of a run; None if nothing needs them.

    A source of a single role is for any role, if no source has this one.

    Raises:
        UserError: a source is missing, cannot be read or does not fit the role, or nothing uses the sources.
    """
    config = settings.demonstration
    needing = [key for key in settings.auxiliaries if find_class("auxiliaries", key).needs_demonstrations]
    users = [f"auxiliaries.{key}" for key in needing]
    if config.batch_share != 0:
        users.append("demonstration_config.batch_share")
        if not settings.agent.uses_replay:
            raise UserError(f"{users[-1]} is for algorithms with a replay, not for {settings.base.algorithm}")
    if not users:
        if config.sources:
            raise UserError(f"{SETTING} has no effect: set batch_share, or auxiliaries.behavior_cloning or gail")
        return None
    by_source = {source: read_demonstrations(locate_source(source, folder)) for source in config.sources}
    found = {source: by_role[name] for source, by_role in by_source.items() if name in by_role}
    if not found:
        found = {source: next(iter(each.values())) for source, each in by_source.items() if len(each) == 1}
    if not found:
        raise UserError(f"{users[0]} needs demonstrations{role_suffix(name)}: set {SETTING}")
    for source, demonstrations in found.items():
        check_role(source, demonstrations, role)
    return Demonstrations.join(list(found.values()))


def locate_source(source: str, folder: RunFolder) -> str | Path:
    """Return a source of a run, whose files are in its folder. Raises UserError for a file outside of it."""
    if not is_demonstration_file(source):
        return source
    try:
        return resolve_inside(folder.path, Path(Path(source).name))
    except ValueError as error:
        raise UserError(f"{SETTING}: {error}") from error


def make_demonstration_share(
    settings: Settings, agent: Agent, demonstrations: Demonstrations | None, seed: int
) -> DemonstrationShare | None:
    """Return the demonstrations that are a part of each replayed batch; None without them. Raises UserError."""
    share = settings.demonstration.batch_share
    if share == 0 or demonstrations is None:
        return None
    try:
        return DemonstrationShare(make_replay(demonstrations, agent, seed), share)
    except ValueError as error:
        raise UserError(f"{SETTING}: {error}") from error


def make_replay(
    demonstrations: Demonstrations, agent: Agent, seed: int, length: int | None = None
) -> DemonstrationReplay:
    """Return demonstrations as a replay for an agent.

    A sequence has `length` rows after the burn-in; None: as many as the agent learns from at once. Raises ValueError if
    there are too few rows.
    """
    schedule, warmup_rows = agent.schedule, agent.policy.torso.warmup_rows
    burn_in = schedule.burn_in if schedule.uses_replay else warmup_rows
    if length is None:
        most = min(schedule.rollout_length, len(demonstrations) - burn_in)
        length = schedule.sequence_length if schedule.uses_replay else most
    return DemonstrationReplay(
        demonstrations=demonstrations,
        seed=seed,
        length=length,
        burn_in=burn_in,
        warmup_rows=warmup_rows,
        state_size=agent.state_size,
        stored_state_size=agent.stored_state_size,
        statistics_size=agent.family.statistics_size,
        from_action=agent.family.from_action,
    )


def pretrain(name: str, learner: Learner, log: Callable[[str], None]) -> None:
    """Make the updates of auxiliaries before the run; `log` receives a line for each of them."""
    for key, auxiliary in learner.auxiliaries.by_name.items():
        if auxiliary.pretraining_updates:
            first, last = learner.pretrain(auxiliary)
            count = f"{auxiliary.pretraining_updates:,} updates before the run"
            log(f"{key}{role_suffix(name)}: {count}, loss {first:.3g} -> {last:.3g}")


def check_role(source: str, demonstrations: Demonstrations, role: Role) -> None:
    """Raise UserError for demonstrations with other spaces than those of a role, or with a forbidden action."""
    recorded = demonstrations.role
    specs = {name: (spec.shape, spec.dtype) for name, spec in drop_team(role.obs_specs).items()}
    actions = role.action_spec
    differs = {name: (spec.shape, spec.dtype) for name, spec in recorded.obs_specs.items()} != specs
    if differs or (recorded.action_spec.continuous, recorded.action_spec.branches) != (
        actions.continuous,
        actions.branches,
    ):
        raise UserError(
            f"{SETTING}: {source} has {describe_specs(recorded)}; the environment has {describe_specs(role)}"
        )
    if ACTION_MASK in demonstrations.obs:
        taken = replace(actions, continuous=0).encode(demonstrations.action[:, actions.continuous :])
        forbidden = (taken > demonstrations.obs[ACTION_MASK]).any(1) & ~demonstrations.is_bootstrap_row
        if forbidden.any():
            row = int(np.flatnonzero(forbidden)[0])
            raise UserError(f"{SETTING}: {source} has an action that its mask forbids, in step {row + 1}")
