"""A short play of random actions in an environment, from which settings for it are suggested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, EnvironmentCrashed, SimulatorError
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK, ActionSpec
from algorithm.training.invalid_values import RunningEpisodes

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
    rewards, episode_lengths, terminations, steps, failure = [np.zeros(0, np.float32)], [], 0, 0, None
    by_role: dict[str, RunningEpisodes] = {}
    try:
        with closing(make_adapter(config)) as adapter:
            for steps, tick in enumerate(_iterate_ticks(adapter, seed)):
                for role, step in tick.items():
                    lanes = adapter.roles[role].lanes
                    episodes = by_role.setdefault(role, RunningEpisodes(role, lanes, ()))
                    if lanes > len(episodes.lengths):
                        episodes.grow(lanes)
                    follows_action = episodes.lengths[step.lane] > 0
                    rewards.append(step.reward[follows_action].copy())
                    terminations += int((follows_action & ~step.alive).sum())
                    episode_lengths += [length for _, _, length in episodes.add(step)]
                    if not np.isfinite(step.reward).all():
                        raise EnvironmentCrashed(f"a reward of role {role!r} is NaN or infinite after {steps} actions")
    except SimulatorError as error:
        failure = " ".join(str(error).split())
    if failure is None and steps < MIN_STEPS:
        failure = f"the environment executed only {steps} actions in {MAX_SECONDS:g} s"
    return RandomPlay(
        rewards=np.concatenate(rewards),
        episode_lengths=tuple(episode_lengths),
        terminations=terminations,
        steps=steps,
        failure=failure,
    )


def _iterate_ticks(adapter: Adapter, seed: int) -> Iterator[Mapping[str, Step]]:
    """Play random actions until a limit, and yield the steps of all roles before and after each action."""
    rng, deadline = np.random.default_rng(seed), time.monotonic() + MAX_SECONDS
    steps = adapter.reset(seed)
    yield steps
    for _ in range(MAX_STEPS):
        actions = {role: draw_actions(adapter.roles[role].action_spec, step, rng) for role, step in steps.items()}
        steps = adapter.step(actions)
        yield steps
        if time.monotonic() > deadline:
            return


def draw_actions(spec: ActionSpec, step: Step, rng: np.random.Generator) -> np.ndarray:
    """Return uniformly random allowed actions [n, size] for the lanes of a Step."""
    n = len(step.lane)
    actions = [rng.uniform(-1, 1, (n, spec.continuous)).astype(np.float32)]
    mask = step.obs.get(ACTION_MASK, np.ones((n, sum(spec.branches)), np.float32))
    for allowed in np.split(np.asarray(mask) > 0, np.cumsum(spec.branches)[:-1], -1) if spec.branches else ():
        preference = rng.random(allowed.shape) + allowed  # allowed actions come first; a row may allow none
        actions.append(preference.argmax(-1)[:, None].astype(np.float32))
    return np.concatenate(actions, -1)
