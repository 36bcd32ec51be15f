"""The contract between an algorithm and the loop that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.distributions.distribution import DistributionFamily
from algorithm.networks import RunningMoments, TargetNetwork
from algorithm.networks.torso import Torso
from algorithm.rollout import Array, Decision, Rollout, Step

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class ParameterGroup:
    """A module that is stepped by itself: its own rate, schedule, optimizer and clip."""

    module: nn.Module
    learning_rate: float
    learning_rate_schedule: str  # constant | linear (to 0 at max_step)
    optimizer: str  # adam | rmsprop
    optimizer_decay: float  # of the mean of squared gradients
    optimizer_epsilon: float
    epsilon_inside: bool  # rmsprop: under the root, as in the paper, or behind it, as in torch
    max_grad_norm: float
    beta1: float = 0.9  # adam: decay of the mean of gradients


@dataclass(frozen=True)
class DataSchedule:
    """What is learned from, how much and when. Lengths are rows; `learning_starts` counts rows over all lanes."""

    rollout_length: int
    sequence_length: int
    batch_size: int
    replay_ratio: float  # replayed batches for each collected rollout
    replay_count_distribution: str  # poisson | fixed
    learning_starts: int
    on_policy_updates: bool = True  # also learn from the fresh rollout
    burn_in: int = 0  # rows in front of a window, to bring the memory up to date
    warmup_rows: int = 0  # the first of these, that rebuild what a replay does not keep of the memory


@dataclass(frozen=True)
class RewardTransform:
    """What a learner does to raw rewards: clip to [-clip, clip], times scale, over the running std of returns."""

    scale: float
    clip: float | None
    reward_normalization: str | None  # return_std
    gamma: float  # of the returns whose std is taken


@dataclass
class LossReport:
    """What a loss tells: scalar metrics as tensors, `td_error_stats` [2, B], the features it made.

    Metrics and errors are computed when they are called, without gradient: they cost a tenth of an update, and
    nobody wants them of every one. A replay that prioritises makes priorities of the errors; a learner's report gives
    them in numpy, an agent's as a tensor.
    """

    compute_metrics: Callable[[], dict[str, Tensor]]
    compute_td_errors: Callable[[], Array]
    features: Tensor | None = field(default=None, repr=False)


class Agent(ABC):
    """An algorithm with its networks. It never sees replay, adapters, the loop or files.

    `groups` and `lagging` say what it trains and what follows; the loop lays them out in flat tensors once, before
    the first step. `policy` is one step of acting: (obs, memory) -> (statistics, memory).
    """

    Settings: type  # the dataclass of its section in default_config.yaml
    policy: nn.Module
    family: DistributionFamily  # of the policy's distributions
    groups: Mapping[str, ParameterGroup]
    target_networks: Mapping[str, TargetNetwork]
    schedule: DataSchedule
    reward_transform: RewardTransform
    state_size: int  # numbers of memory per lane
    stored_state_size: int  # the first of these, that a replay keeps; `schedule.lead` rows rebuild the others
    rng: np.random.Generator  # of its samples

    @abstractmethod
    def act(self, step: Step, memory: np.ndarray) -> Decision:
        """Sample an action for each lane of `step`; memory [n, state]."""

    @abstractmethod
    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        """The most probable action for each lane of `step`."""

    @abstractmethod
    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossReport]:
        """One scalar for each group, without gradient outside it, and a Report."""

    def running_statistics(self) -> dict[str, nn.Module]:
        """The modules whose buffers are running statistics, under the name of the group they belong to."""
        modules_by_group = {
            name: nn.ModuleList(_find_modules(group, RunningMoments)) for name, group in self.groups.items()
        }
        return {f"obs/{name}": modules for name, modules in modules_by_group.items() if modules}

    def observe(self, rollout: Rollout) -> None:
        """Update what `running` names from a collected rollout, once for each: its valid rows, and no other.

        It is not called where `running` names nothing.
        """
        obs = {name: value[:-1] for name, value in rollout.obs.items()}
        for group in self.groups.values():
            for torso in _find_modules(group, Torso):
                torso.observe(obs, rollout.valid)

    @abstractmethod
    def features(self, rollout: Rollout) -> Tensor:
        """[T+1, B, F] without gradient, for auxiliaries that give rewards."""

    @abstractmethod
    def target_features(self, rollout: Rollout) -> Tensor:
        """[T+1, B, F] of the lagging network, without gradient."""

    @abstractmethod
    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """{name: [rows, ...]} -> [rows, F], with gradient, in front of the memory."""

    @abstractmethod
    def q(self, features: Tensor, raw_action: Tensor) -> Tensor:
        """Action values [...] of samples [..., size] given features [..., F]."""

    @abstractmethod
    def update_targets(self, update: int) -> None:
        """Move target and average networks; called after each optimiser step, `update` being its number."""


def _find_modules(group: ParameterGroup, kind: type[Module]) -> list[Module]:
    return [module for module in group.module.modules() if isinstance(module, kind)]


def mean_weights(valid: Tensor, weight: Tensor) -> Tensor:
    """[T, B] weights that turn a sum over rows into the mean over valid rows, each column scaled by `weight` [B].

    All are 0 where no row is valid.
    """
    rows = valid.to(weight.dtype)
    return rows * (weight / rows.sum().clamp(min=1))


def td_error_stats(valid: Tensor, error: Tensor) -> Tensor:
    """[2, B] the largest and the mean |error| [T, B] of each column's valid rows; 0 where there are none."""
    magnitude = valid * error.abs()
    return torch.stack((magnitude.amax(0), magnitude.sum(0) / valid.sum(0).clamp(min=1)))


def weighted_means(weights: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weighted sums of several [T, B] values at once, detached."""
    with torch.no_grad():
        sums = torch.stack(list(values.values())).flatten(1) @ weights.flatten()
    return dict(zip(values, sums.unbind(), strict=True))
