"""The explorers: noise and repetition with a level in each lane, repeated noise, and the most novel action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import ClassVar

import numpy as np

from algorithm.agents.agent import Agent, add_noise, make_decision
from algorithm.distributions import MASKED_LOGIT, CategoricalFamily
from algorithm.distributions.categorical import list_combinations
from algorithm.exploration.explorer import Explorer, Novelty, check_count
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class LaneLevels(Explorer):
    """An explorer whose levels rise from the first to the last lane, evenly spaced unless a subclass says otherwise.

    Lanes that are added later have levels between the levels of the others.

    Args:
        levels: [min, max], the levels of the first and of the last lane; at least 0, and at most 1 if the role has
            discrete actions, for which the level is a probability.

    Raises:
        ValueError: Invalid levels.
    """

    PROBABILITY: ClassVar[str] = "a random action"  # event that the level of a discrete action is the probability of

    def __init__(self, role: Role, levels: Sequence[float]):
        highest = 1 if role.action_spec.branches else np.inf
        if not (_is_number_pair(levels) and 0 <= levels[0] <= levels[1] <= highest):
            bound = f" <= 1, since it is the probability of {self.PROBABILITY}" if role.action_spec.branches else ""
            raise ValueError(f"levels are {levels!r}; they must be two numbers [min, max] with 0 <= min <= max{bound}")
        self.lowest, self.highest = levels
        self.lane_levels = self.interpolate(np.linspace(0, 1, role.lanes)).astype(np.float32)

    def grow(self, lanes: int, initial_lanes: int) -> None:
        super().grow(lanes, initial_lanes)
        positions = np.append(np.linspace(0, 1, initial_lanes), _van_der_corput(lanes - initial_lanes))
        self.lane_levels = self.interpolate(positions).astype(np.float32)

    def select_lanes(self, lanes: Sequence[int]) -> None:
        super().select_lanes(lanes)
        self.lane_levels = self.lane_levels[list(lanes)]

    def interpolate(self, position: np.ndarray) -> np.ndarray:
        """Return the levels at positions [n] from 0, the first lane, to 1, the last one."""
        return self.lowest + (self.highest - self.lowest) * position


def _van_der_corput(count: int) -> np.ndarray:
    """Return the first numbers of the van der Corput sequence 1/2, 1/4, 3/4, 1/8, 5/8, ..., which are evenly spread."""
    return np.array([int(f"{k:b}"[::-1], 2) / 2 ** k.bit_length() for k in range(1, count + 1)])


def _is_number_pair(levels: object) -> bool:
    """Return whether `levels` is a list or tuple of two finite numbers."""
    pair = levels if isinstance(levels, list | tuple) else ()
    valid = [level for level in pair if isinstance(level, int | float) and not isinstance(level, bool)]
    return len(pair) == len(valid) == 2 and all(map(isfinite, valid))


class ActionNoise(LaneLevels):
    """An explorer that adds noise to the policy: lane i of n has the level linspace(min, max, n)[i].

    Actions are drawn from the noisy policy itself, whose statistics are stored, so importance ratios are exact. Level 0
    is the policy; `DistributionFamily.with_noise` defines the other levels. Of a discrete action, the level is the
    probability of a random one.
    """

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        return add_noise(agent, agent.act(step, memory), self.lane_levels[step.lane])


class ActionRepeat(LaneLevels):
    """An explorer that repeats actions, as long in a lane as its level p is large.

    Independent random actions cancel each other out; repeated ones reach states that need a long effort in one
    direction (Dabney et al. 2020, arXiv 2006.01782). A lane takes its previous action again with probability p.
    Otherwise it takes a random action with probability p, and the action of the policy with probability 1 - p. The
    distribution of an action given its predecessor, p [a = predecessor] + (1 - p) (p uniform + (1 - p) pi), is stored,
    so that importance ratios are exact. Level 0 is the policy. The first action of an episode is the policy's, and a
    forbidden action is not repeated.

    Args:
        role: The role, whose actions are discrete.
        levels: [min, max], the probabilities of repetition of the first and of the last lane. Between them, the mean
            durations of an action, 1 / (1 - p), are a geometric sequence, since a task needs some multiple of a step.

    Raises:
        ValueError: Invalid levels, or continuous actions.
    """

    LANE_ARRAYS = ("previous",)
    PROBABILITY = "a repetition"

    def __init__(self, role: Role, levels: Sequence[float]):
        if role.action_spec.continuous:
            raise ValueError("action_repeat is for discrete actions; for continuous actions there is action_noise")
        super().__init__(role, levels)
        if self.highest >= 1:
            raise ValueError(f"levels are {levels!r}; they must be below 1, or an action would never end")
        # Indices of the last actions.
        self.previous = np.zeros((role.lanes, len(role.action_spec.branches)), np.int64)

    def interpolate(self, position: np.ndarray) -> np.ndarray:
        return 1 - (1 - self.lowest) ** (1 - position) * (1 - self.highest) ** position

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        level = np.where(step.first, 0, self.lane_levels[step.lane]).astype(np.float32)
        switching = family.with_noise(decision.behavior, level)
        behavior = family.with_repetition(switching, self.previous[step.lane], level)
        sample = family.sample(behavior, agent.rng)
        self.previous[step.lane] = sample
        return make_decision(agent.family, sample, behavior, decision.memory)


class NoiseRepeat(Explorer):
    """An explorer that holds the noise of continuous actions for a random number of steps (FlashSAC, arXiv 2604.04539).

    A continuous action, before clipping or squashing, is mean + std * noise, with mean and std of the policy at each
    step and standard normal noise that a lane holds for n steps: P(n) is proportional to 1 / n^2, for n up to a limit
    (Zeta(2), truncated). At the start of an episode the noise is drawn again. Discrete branches are drawn at each step.

    Each single action has the distribution of the policy, whose statistics are stored. Given the previous actions of
    its lane it has another one, so that importance ratios of the stored statistics would be wrong.

    Args:
        role: The role, whose actions have continuous dimensions.
        max_repeat: The largest n, at least 1; 1: the noise is drawn at each step, as without this explorer.

    Raises:
        ValueError: Invalid `max_repeat`, or no continuous dimensions.
    """

    LANE_ARRAYS = ("noise", "remaining")

    def __init__(self, role: Role, max_repeat: int = 16):
        check_count("max_repeat", max_repeat)
        if not role.action_spec.continuous:
            raise ValueError("noise_repeat is for continuous actions; for discrete actions there is action_repeat")
        cumulative = np.cumsum(1 / np.arange(1, max_repeat + 1) ** 2)
        self.cumulative_probs = cumulative / cumulative[-1]  # of n = 1, 2, ...
        self.noise = np.zeros((role.lanes, role.action_spec.continuous), np.float32)
        self.remaining = np.zeros(role.lanes, np.int64)  # further steps with the noise of each lane

    def connect(self, agent: Agent, novelties: Mapping[str, Novelty]) -> None:
        if agent.needs_behavior:
            raise ValueError(
                "importance ratios are not supported, since the density of an action, given the previous actions, is "
                "not the policy's; use SAC with n_step: 1 or use_n_step_is: false"
            )

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision = agent.act(step, memory)
        self._resample(step.lane[step.first | (self.remaining[step.lane] == 0)], agent.rng)
        self.remaining[step.lane] -= 1
        sample = agent.family.sample(decision.behavior, agent.rng, self.noise[step.lane])
        return make_decision(agent.family, sample, decision.behavior, decision.memory)

    def _resample(self, lanes: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the noise of these lanes, and the number of steps for which they hold it."""
        self.noise[lanes] = rng.standard_normal((len(lanes), self.noise.shape[1]), np.float32)
        self.remaining[lanes] = 1 + np.searchsorted(self.cumulative_probs, rng.random(len(lanes)), side="right")


class NovelAction(Explorer):
    """An explorer that draws n actions from the policy and executes the most novel one, as an auxiliary measures it.

    If the policy is a single categorical distribution, the action is drawn from the exact distribution of the most
    novel one of n, which is stored, so that importance ratios are exact. The density of other actions is unknown: they
    are for agents whose losses do not need it, and the statistics of the policy are stored.

    Args:
        n_samples: n, at least 1; 1 is the policy.

    Raises:
        ValueError: Invalid n.
    """

    def __init__(self, role: Role, n_samples: int = 8):
        check_count("n_samples", n_samples)
        self.n_samples, self.action_spec = n_samples, role.action_spec
        self.measure_novelty: Novelty | None = None

    def connect(self, agent: Agent, novelties: Mapping[str, Novelty]) -> None:
        if not novelties:
            raise ValueError("it needs the novelty of actions: set auxiliaries.rnd.input to observation_and_action")
        if agent.needs_behavior and not self._is_categorical(agent):
            raise ValueError(
                f"the density of the most novel action is unknown for {self.action_spec}, and the agent needs it; "
                "use SAC with n_step: 1 or use_n_step_is: false"
            )
        self.measure_novelty = next(iter(novelties.values()))

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision = agent.act(step, memory)
        select = self._select_exactly if self._is_categorical(agent) else self._select_sample
        sample, behavior = select(agent, step, decision.behavior)
        return make_decision(agent.family, sample, behavior, decision.memory)

    def _is_categorical(self, agent: Agent) -> bool:
        """Return whether the policy is one categorical distribution over all actions."""
        is_single = len(self.action_spec.branches) == 1 or isinstance(agent.family, CategoricalFamily)
        return is_single and not self.action_spec.continuous

    def _select_exactly(self, agent: Agent, step: Step, statistics: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a raw action [n, size] and the logits [n, K] of the distribution from which it was drawn."""
        actions = list_combinations(self.action_spec.branches)
        novelty = self._measure(step, np.tile(actions, (len(statistics), 1, 1)))
        probs = np.exp(statistics.astype(np.float64) - statistics.max(-1, keepdims=True))
        probs = compute_best_of_n(probs / probs.sum(-1, keepdims=True), novelty, self.n_samples)
        logits = np.full(statistics.shape, MASKED_LOGIT, np.float32)
        np.log(probs, out=logits, where=probs > 0, casting="same_kind")
        return agent.family.sample(logits, agent.rng), logits

    def _select_sample(self, agent: Agent, step: Step, statistics: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the most novel of n raw actions [n, size], and the statistics of the policy."""
        samples = np.stack([agent.family.sample(statistics, agent.rng) for _ in range(self.n_samples)], 1)
        most_novel = self._measure(step, samples).argmax(-1)
        return samples[np.arange(len(samples)), most_novel], statistics

    def _measure(self, step: Step, actions: np.ndarray) -> np.ndarray:
        """Return the novelty [n, k] of raw actions [n, k, size]; 0 where it is not finite."""
        assert self.measure_novelty is not None  # set by `connect`
        return np.nan_to_num(self.measure_novelty(step.obs, actions), nan=0, posinf=0, neginf=0)


def compute_best_of_n(probs: np.ndarray, novelty: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the distribution of the most novel one of several actions that are drawn from a distribution.

    With F(a) the probability of an action that is at most as novel as a, and F(a-) of one that is less novel, the
    result is F(a)^n - F(a-)^n. It is divided among equally novel actions in proportion to their probabilities, as if
    the first of them were executed.

    Args:
        probs: Probabilities of K actions [rows, K].
        novelty: Their novelty [rows, K].
        n_samples: n.

    Returns:
        Probabilities [rows, K].
    """
    difference = novelty[:, np.newaxis, :] - novelty[:, :, np.newaxis]  # of each action (last axis) to each action
    less_novel, equally_novel = (
        (selected * probs[:, np.newaxis, :]).sum(-1) for selected in (difference < 0, difference == 0)
    )
    share = np.divide(probs, equally_novel, out=np.zeros_like(probs), where=probs > 0)
    return share * ((less_novel + equally_novel) ** n_samples - less_novel**n_samples)
