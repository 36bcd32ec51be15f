"""Exploration by the most novel of several actions of the policy (Advanced-Soft-Actor-Critic, `rnd_n_sample`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.distributions import MASKED_LOGIT, CategoricalFamily
from algorithm.distributions.combinations import list_combinations
from algorithm.exploration.explorer import Explorer, Novelty, check_count, decide
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class NovelAction(Explorer):
    """An explorer that draws n actions from the policy and executes the most novel one, as an auxiliary measures it.

    If the policy is a single categorical distribution, the action is drawn from the exact distribution of the most
    novel one of n, which is stored, so that importance ratios are exact. The density of other actions is unknown: they
    are for agents whose losses do not need it, and the statistics of the policy are stored.

    Args:
        role: The role.
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
        return decide(agent, sample, behavior, decision.memory)

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
