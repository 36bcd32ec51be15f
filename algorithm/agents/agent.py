"""The contract between an algorithm and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.settings import ActorCriticSettings, CategoricalSettings
from algorithm.distributions import ClosedFormDistribution, DistributionFamily
from algorithm.networks import Policy, RunningMoments, TargetNetwork, Torso
from algorithm.returns import RewardStream
from algorithm.rollout import Array, Decision, Rollout, Step

Module = TypeVar("Module", bound=nn.Module)
# The number, mean and standard deviation of the values of a batch -> those of the values in the batches of all learners
MergeMoments = Callable[[int, float, float], tuple[int, float, float]]


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """A module whose parameters have their own optimizer, learning rate and maximum gradient norm."""

    module: nn.Module
    learning_rate: float  # natural: delta, the largest mean KL divergence of the policy, in nats
    learning_rate_schedule: str = "constant"  # constant | linear | cosine
    learning_rate_final_fraction: float = 0.0  # linear, cosine: the learning rate at max_step over `learning_rate`
    # adam | adamw | rmsprop | natural (see Agent.divergence), which steps after the other groups
    optimizer: str = "adam"
    weight_decay: float = 0.0  # adamw: rate at which parameters decay to 0, as a multiple of the learning rate
    optimizer_beta1: float = 0.9  # adam, adamw: decay of the mean of gradients
    optimizer_decay: float = 0.99  # of the mean of squared gradients: Adam's beta2, RMSprop's alpha
    optimizer_epsilon: float = 1e-8
    epsilon_inside: bool = False  # rmsprop: epsilon is added inside the square root; False: to the root, as in torch
    max_grad_norm: float
    cg_iterations: int = 10  # natural: conjugate gradient iterations for each of two linear systems
    damping: float = 0.1  # natural: added to the diagonal of the Fisher matrix
    max_halvings: int = 10  # natural: halvings of the step before it is dropped


@dataclass(frozen=True, kw_only=True)
class DataSchedule:
    """The batches that an agent learns from, and their number. Lengths are in rows (steps of one lane).

    With a replay, collected rollouts are stored, and batches of sequences are replayed. Without one, each collected
    rollout is learned from before the agent acts again: once, or in `epochs` of minibatches.
    """

    rollout_length: int
    uses_replay: bool = True
    # Only with a replay:
    sequence_length: int = 1
    batch_size: int = 1  # sequences of a replayed batch
    replay_ratio: float | None = 0.0  # replayed batches for each collected rollout; None: as `replays` requires
    replays: float = 0.0  # replayed rows for each collected row, if `replay_ratio` is None
    replay_count_distribution: str = "fixed"  # poisson | fixed: the number of batches after one rollout
    learning_starts: int = 0  # rows stored before the first replayed batch, over all lanes
    on_policy_updates: bool = True  # also learn from each collected rollout
    burn_in: int = 0  # rows before a sequence, which only update the memory
    warmup_rows: int = 0  # the first rows of `burn_in`, which rebuild the part of the memory that is not stored
    # Only without a replay:
    epochs: int | None = None  # passes over a rollout that `Agent.prepare` has prepared; None: one update, unprepared
    minibatches: int = 1  # parts of a prepared rollout, with an update each

    def count_batches(self, rows: int) -> float:
        """Return the mean number of replayed batches for a collected rollout with this number of rows."""
        if self.replay_ratio is not None:
            return self.replay_ratio
        return self.replays * rows / (self.batch_size * self.sequence_length)


@dataclass(frozen=True, kw_only=True)
class RewardTransform:
    """The transformation of rewards in a batch: clip to [-clip, clip], divide by a statistic of returns, times scale.

    With `return_max`, the discounted sum of divided rewards up to any row so far is within [-return_bound,
    return_bound]; `scale` multiplies this range too. Rewards that auxiliaries add are not counted.
    """

    scale: float
    clip: float | None
    reward_normalization: str | None  # return_std | return_max (see training/rewards.py)
    gamma: float  # discount of the returns that are measured
    return_bound: float | None = None  # return_max: largest magnitude of divided returns, before `scale`

    @classmethod
    def from_settings(cls, settings: ActorCriticSettings | CategoricalSettings) -> RewardTransform:
        """Return the transformation that the settings of an algorithm describe.

        Rewards without a scale are divided by the standard deviation of returns.
        """
        scale, normalization = settings.reward_scale, settings.reward_normalization
        return cls(
            scale=1.0 if scale is None else scale,
            clip=settings.reward_clip,
            reward_normalization="return_std" if scale is None else normalization,
            gamma=settings.gamma,
            return_bound=settings.return_bound,
        )


@dataclass(frozen=True, kw_only=True)
class ParameterReset:
    """A reset of all parameters of an agent, `theta <- shrink theta + (1 - shrink) new`, every `every` updates.

    With `shrink` 0 the new parameters replace the old ones (Nauman et al. 2024, arXiv 2405.16158); larger values are
    shrink-and-perturb (Ash & Adams 2020, arXiv 1910.08475).
    """

    every: int
    shrink: float
    make_groups: Callable[[], Mapping[str, ParameterGroup]]  # the agent's groups with new initial parameters


@dataclass
class LossResult:
    """The metrics and TD errors of an update, and the features of its forward pass.

    Metrics and errors are computed when their functions are called, without gradient: together they take a tenth of an
    update, and most updates do not need them.
    """

    compute_metrics: Callable[[], dict[str, Tensor]]  # scalars
    compute_td_errors: Callable[[], Array]  # [2, B] of `td_error_stats`: a tensor from an agent, numpy from a learner
    features: Tensor | None = field(default=None, repr=False)  # [T+1, B, F], or of the T rows only
    # TD errors [T, B] of the rows after the burn-in, of an agent with a replay; those of invalid rows have any value.
    compute_row_errors: Callable[[], Tensor] | None = None
    raw_action: np.ndarray | None = field(default=None, repr=False)  # [T, B, size] of the rollout before the update
    # Mean KL from the old policy over the valid rows, minus its limit; 0 without one. Above 0 the policy has changed
    # enough: the epochs of the rollout end before the step of this batch.
    kl_excess: float = 0.0

    def add_metrics(self, compute_metrics: Callable[[], dict[str, Tensor]]) -> None:
        """Add the metrics of a function, which is called together with `compute_metrics`."""
        metrics = self.compute_metrics
        self.compute_metrics = lambda: {**metrics(), **compute_metrics()}


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """C = mean KL[average || policy] over the valid rows of a batch, as a function of the policy's parameters."""

    compute_policy: Callable[[], ClosedFormDistribution]  # at the T rows, from the present parameters, with gradient
    average: ClosedFormDistribution  # the center of the trust region, at the T rows, without gradient
    weights: Tensor  # [T, B], with which a sum over rows is the mean over valid rows


class Agent(ABC):
    """An algorithm with its networks. It never accesses replay, adapters, the training loop or files.

    A subclass assigns the attributes below in its constructor and defines `loss`. The training loop lays the parameters
    of `groups` and `target_networks` out in flat tensors once, before the first update.
    """

    Settings: type[Any]  # the dataclass of the agent's section in default_config.yaml
    policy: Policy  # one step of acting: (obs, memory) -> (statistics, memory)
    family: DistributionFamily[Any]  # of the policy's distributions
    groups: Mapping[str, ParameterGroup]  # trained parameters
    target_networks: Mapping[str, TargetNetwork[Any]] = {}
    schedule: DataSchedule
    reward_transform: RewardTransform
    # Rewards with a value output each, in addition to `Rollout.reward`: those of `Rollout.bonuses` with these names. A
    # class that supports them has the keyword argument `streams`. The outputs are in the order of the names.
    streams: Mapping[str, RewardStream] = {}
    needs_behavior: bool = True  # whether `loss` needs the statistics from which the executed actions were drawn
    rng: np.random.Generator  # for sampling actions
    random_steps: int = 0  # number of first rows, over all lanes, that `act_uniformly` collects
    random_decay_steps: int = 0  # rows after them in which the noise of discrete actions falls linearly from 1 to 0
    reset: ParameterReset | None = None  # None: the parameters are never reset
    # Set if several learners average their gradients. A `loss` that normalizes values over the batch then does so over
    # the batches of all learners: it calls `merge_moments` once, and `merges_moments` is True.
    merge_moments: MergeMoments | None = None
    merges_moments: bool = False
    # Set before each `loss`:
    progress: float = 0.0  # fraction of max_step that has been collected
    update: int = 1  # number of the update (the first is 1)

    @classmethod
    def supports_streams(cls, settings: Any) -> bool:
        """Return whether agents with these `Settings` have a value for each of `streams`."""
        return False

    @property
    def state_size(self) -> int:
        """Size of the memory of one lane."""
        return self.policy.state_size

    @property
    def stored_state_size(self) -> int:
        """Size of the part of the memory, from its start, that a replay stores; `warmup_rows` rows rebuild the rest."""
        return self.policy.stored_state_size

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        """Sample an action for each lane of `step`, given the memory [n, state_size] of these lanes."""
        return self._decide(step, memory, lambda statistics: self.family.sample(statistics, self.rng))

    def act_uniformly(self, step: Step, memory: np.ndarray) -> Decision:
        """Draw an action from a uniform distribution over all actions for each lane, with the arguments of `act`.

        It is called in the first rows of a run if `random_steps` is set.
        """
        raise NotImplementedError(f"{type(self).__name__} sets random_steps, but has no `act_uniformly`")

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        """Select the most probable action for each lane of `step`, with the arguments of `act`."""
        return self._decide(step, memory, self.family.mode)

    def _decide(self, step: Step, memory: np.ndarray, select_action: Callable[[np.ndarray], np.ndarray]) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        return make_decision(self.family, select_action(statistics), statistics, memory)

    def prepare(self, rollout: Rollout) -> Rollout:
        """Return a collected rollout with the `targets` that stay the same during its epochs.

        It is called once for each collected rollout, if `schedule.epochs` is set, without gradient and with transformed
        rewards.
        """
        raise NotImplementedError(f"{type(self).__name__} sets epochs, but has no `prepare`")

    @abstractmethod
    def loss(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], LossResult]:
        """Return one loss for each group, whose gradient reaches the parameters of this group only, and a LossResult.

        The losses are means over the valid rows (`mean_weights`), so that several learners can weight their gradients
        by the number of these rows. The optimizer steps the groups that have a loss; the others keep their parameters
        and moments in this update.
        """

    def divergence(self, rollout: Rollout) -> Divergence:
        """Return the divergence that a step of the `natural` group limits; needed only if there is such a group.

        Args:
            rollout: The batch of the last `loss`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no policy in a trust region")

    def running_statistics(self) -> dict[str, nn.Module]:
        """Return the modules whose buffers are running statistics, by `obs/` and the name of their group."""
        by_group = {name: nn.ModuleList(_find_modules(group, RunningMoments)) for name, group in self.groups.items()}
        return {f"obs/{name}": modules for name, modules in by_group.items() if modules}

    def observe(self, rollout: Rollout) -> None:
        """Update the running statistics from the valid rows of a collected rollout.

        It is called once for each collected rollout, if `running_statistics` is not empty.
        """
        obs = {name: value[:-1] for name, value in rollout.obs.items()}
        for group in self.groups.values():
            for torso in _find_modules(group, Torso):
                torso.observe(obs, rollout.valid)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        """Return features [T+1, B, F] without gradient, for auxiliaries that add rewards."""
        return unroll(self.policy.torso, rollout)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return features [n, F] of observations {name: [n, ...]} with gradient, before the memory."""
        return self.policy.torso.encode(obs)

    def compute_statistics(self, rollout: Rollout) -> Tensor:
        """Return the statistics [T, B, S] of the policy at the rows after the burn-in, with gradient if it has any.

        The memory is 0 before the first row of the burn-in, and rebuilt from there.
        """
        rows, columns, begin = len(rollout), rollout.reward.shape[1], rollout.burn_in
        memory = rollout.memory.new_zeros(columns, self.state_size)
        if not self.state_size:
            obs = {name: value[begin:rows].flatten(0, 1) for name, value in rollout.obs.items()}
            return self.policy(obs, memory.new_zeros((rows - begin) * columns, 0))[0].unflatten(0, (-1, columns))
        by_row = []
        for t in range(rows):
            memory = memory.masked_fill(rollout.first[t].unsqueeze(-1), 0)
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= begin):
                statistics, memory = self.policy({name: value[t] for name, value in rollout.obs.items()}, memory)
            by_row.append(statistics)
        return torch.stack(by_row[begin:])

    def evaluate_actions(self, features: Tensor, raw_action: Tensor) -> Tensor:
        """Return the values Q(x, a) of M critics [M, n] with gradient, for features [n, F] and actions [n, size].

        Raises:
            ValueError: The agent has no action values that are functions of features and action.
        """
        raise ValueError(f"{type(self).__name__} has values of states only, not of actions")

    def update_targets(self, update: int) -> None:
        """Update `target_networks` after optimizer step number `update` (the first is 1). The default does nothing."""


def make_decision(
    family: DistributionFamily[Any], raw_action: np.ndarray, behavior: np.ndarray, memory: np.ndarray
) -> Decision:
    """Return the decision for raw actions [n, size] that were drawn from the statistics `behavior` [n, S]."""
    return Decision(raw_action=raw_action, action=family.to_action(raw_action), behavior=behavior, memory=memory)


def add_noise(agent: Agent, decision: Decision, level: np.ndarray) -> Decision:
    """Draw the actions of a decision again, with noise of a level [n] as in `DistributionFamily.with_noise`."""
    behavior = agent.family.with_noise(decision.behavior, level)
    return make_decision(agent.family, agent.family.sample(behavior, agent.rng), behavior, decision.memory)


def _find_modules(group: ParameterGroup, kind: type[Module]) -> list[Module]:
    return [module for module in group.module.modules() if isinstance(module, kind)]


def unroll(torso: Torso, rollout: Rollout) -> Tensor:
    """Return the features [T+1-burn_in, B, F] of a rollout."""
    return torso.unroll(rollout.obs, rollout.first, rollout.memory, rollout.burn_in)


def select_statistics_rows(rollout: Rollout) -> Tensor:
    """Return [T+1-burn_in, B] bool: the rows that count in the statistics of batch norms, for `batch_statistics`.

    They are the rows that are learned from, as a state (valid rows) or as a next state (the row after a valid row
    that does not terminate).
    """
    valid = rollout.valid[rollout.burn_in :]
    has_successor, none = valid & rollout.alive[rollout.burn_in :], torch.zeros_like(valid[:1])
    return torch.cat((valid, none)) | torch.cat((none, has_successor))
