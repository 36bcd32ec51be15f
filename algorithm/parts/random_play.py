"""A short play of random actions in an environment, from which settings for it are suggested."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, EnvironmentCrashed, SimulatorError
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK, ActionSpec
from algorithm.training.episodes import EpisodeReturns

MAX_STEPS = 1000  # random actions in one environment
MAX_SECONDS = 30.0  # wall time after which the play of a slow environment ends
MIN_STEPS = 100  # random actions below which nothing is concluded


@dataclass(frozen=True, kw_only=True)
class RandomPlay:
    """A record of random actions in one environment.

    Attributes:
        rewards: rewards of all agents, in the order in which they were received [n].
        episode_lengths: lengths of the episodes that have ended, in steps.
        terminations: number of episodes that ended by a termination.
        steps: number of random actions.
        failure: why nothing can be concluded, in one line; None if the environment did not fail.
    """

    rewards: np.ndarray
    episode_lengths: tuple[int, ...] = ()
    terminations: int = 0
    steps: int = MAX_STEPS
    failure: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `MAX_STEPS` actions were played; a slow environment has fewer."""
        return self.steps >= MAX_STEPS

    @property
    def reward_size(self) -> float:
        """The median absolute value of the rewards that are not 0; 0 without such rewards.

        A mean would be the size of a few exceptional rewards, such as those at the end of an episode.
        """
        sizes = np.abs(self.rewards[self.rewards != 0])
        return float(np.median(sizes)) if len(sizes) else 0.0

    @property
    def reward_frequency(self) -> float:
        """The fraction of the rewards that are not 0."""
        return float((self.rewards != 0).mean()) if len(self.rewards) else 0.0

    @property
    def has_equal_rewards(self) -> bool:
        """Whether all rewards are equal, and no episode was ended by a termination: no action made a difference.

        False for less than an episode, unless the play is complete.
        """
        has_seen_enough = self.is_complete or len(self.episode_lengths) > 0
        are_equal = len(self.rewards) > 0 and bool((self.rewards == self.rewards[0]).all())
        return has_seen_enough and are_equal and not self.terminations


def play_randomly(make_adapter: Callable[[EnvConfig], Adapter], config: EnvConfig, seed: int) -> RandomPlay:
    """Play `MAX_STEPS` random actions, or fewer in `MAX_SECONDS`, and return what was observed.

    A failure of the environment, or a reward that is NaN or infinite, ends the play and is recorded. The seed is that
    of the environment and of the actions.
    """
    recorder, failure = _Recorder(), None
    try:
        with closing(make_adapter(config)) as adapter:
            _play(adapter, recorder, seed)
    except SimulatorError as error:
        failure = " ".join(str(error).split())
    if failure is None and recorder.steps < MIN_STEPS:
        failure = f"the environment executed only {recorder.steps} actions in {MAX_SECONDS:g} s"
    return RandomPlay(
        rewards=np.concatenate(recorder.rewards) if recorder.rewards else np.zeros(0, np.float32),
        episode_lengths=tuple(recorder.episode_lengths),
        terminations=recorder.terminations,
        steps=recorder.steps,
        failure=failure,
    )


def _play(adapter: Adapter, recorder: _Recorder, seed: int) -> None:
    """Play random actions until a limit."""
    rng = np.random.default_rng(seed)
    deadline = time.monotonic() + MAX_SECONDS
    steps = adapter.reset(seed)
    while True:
        for role, step in steps.items():
            recorder.add(role, step, adapter.roles[role].lanes)
            if not np.isfinite(step.reward).all():
                raise EnvironmentCrashed(f"a reward of role {role!r} is NaN or infinite after {recorder.steps} actions")
        if recorder.steps == MAX_STEPS or (recorder.steps and time.monotonic() > deadline):
            return
        actions = {role: draw_actions(adapter.roles[role].action_spec, step, rng) for role, step in steps.items()}
        steps = adapter.step(actions)
        recorder.steps += 1


class _Recorder:
    """A recorder of the rewards and of the ends of the episodes of every lane."""

    def __init__(self) -> None:
        self.rewards: list[np.ndarray] = []
        self.episode_lengths: list[int] = []
        self.terminations = 0
        self.steps = 0
        self._episodes: dict[str, EpisodeReturns] = {}  # the running episodes by role

    def add(self, role: str, step: Step, lanes: int) -> None:
        """Add one tick of a role with `lanes` lanes."""
        episodes = self._episodes.setdefault(role, EpisodeReturns(lanes))
        if lanes > len(episodes.lengths):
            episodes.grow(lanes)
        follows_action = episodes.lengths[step.lane] > 0
        self.rewards.append(step.reward[follows_action].copy())
        self.terminations += int((follows_action & ~step.alive).sum())
        self.episode_lengths += [length for _, _, length in episodes.add(step)]


def draw_actions(spec: ActionSpec, step: Step, rng: np.random.Generator) -> np.ndarray:
    """Return uniformly random allowed actions [n, size] for the lanes of a Step."""
    n = len(step.lane)
    actions = [rng.uniform(-1, 1, (n, spec.continuous)).astype(np.float32)]
    mask = step.obs.get(ACTION_MASK, np.ones((n, sum(spec.branches)), np.float32))
    for allowed in np.split(np.asarray(mask) > 0, np.cumsum(spec.branches)[:-1], -1) if spec.branches else ():
        preference = rng.random(allowed.shape) + allowed  # allowed actions come first; a row may allow none
        actions.append(preference.argmax(-1)[:, None].astype(np.float32))
    return np.concatenate(actions, -1)
