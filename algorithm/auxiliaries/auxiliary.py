"""The contract of auxiliary rewards and losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent, select_statistics_rows
from algorithm.auxiliaries.settings import AuxiliarySettings, StreamSettings
from algorithm.demonstrations import Demonstrations
from algorithm.networks import TargetNetwork, Torso, batch_statistics
from algorithm.returns import RewardStream
from algorithm.rollout import Rollout
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class AuxiliaryInputs:
    """The part of a batch and of the agent that an auxiliary may use."""

    batch: Rollout  # as tensors
    torso: Torso  # the agent's
    compute_features: Callable[[], Tensor]  # the agent's features of T rows, or of T+1 rows
    # Encodes rows {name: [rows, ...]} -> [rows, F] with the agent's torso, without its memory; with gradient to the
    # torso only in the loss of an auxiliary that shapes the features.
    encode: Callable[[Mapping[str, Tensor]], Tensor]
    update: int  # number of the agent's update

    @cached_property
    def rollout(self) -> Rollout:
        """The batch after its burn-in: T rows, and the observation after them."""
        return self.batch.drop_burn_in()

    @cached_property
    def row_features(self) -> Tensor:
        """The agent's features [T, B, F] of the rows, with the same gradient as `encode`."""
        return self._computed_features[: len(self.rollout)]

    @cached_property
    def features(self) -> Tensor:
        """The agent's features [T+1, B, F], with the same gradient as `encode`.

        For an agent that does not use the last row, the row is computed here, without gradient: prefer `row_features`.
        """
        features, rows = self._computed_features, len(self.rollout)
        if len(features) > rows:
            return features
        with torch.no_grad():
            last = self.unroll(self.torso, begin=rows)
        return torch.cat((features, last))

    @cached_property
    def _computed_features(self) -> Tensor:
        return self.compute_features()

    def unroll(self, encoder: Torso, begin: int = 0) -> Tensor:
        """Return the features [T+1-begin, B, F] of a torso.

        The memory before the first row is that of the batch, which the agent's torso computed.

        Args:
            encoder: A torso of `Torso.make_encoder`, or of the structure of the agent's torso.
            begin: The first row to return. Rows before it only update the memory, without gradient.
        """
        batch, stored = self.batch, encoder.stored_state_size
        memory = torch.cat((batch.memory[:, :stored], self._select_frames(encoder)), -1)
        return encoder.unroll(batch.obs, batch.first, memory, batch.burn_in + begin)

    def unroll_trained(self, encoder: Torso) -> Tensor:
        """Return the features [T+1, B, F] of a torso that the auxiliary trains.

        If gradients are computed, its batch norms use the statistics of the batch, and commit them.
        """
        rows = partial(select_statistics_rows, self.batch) if torch.is_grad_enabled() else None
        with batch_statistics(rows, commits=True):
            return self.unroll(encoder)

    def select_inputs(self, torso: Torso) -> dict[str, Tensor]:
        """Return the inputs {name: [(T+1) * B, ...]} of the encoders of a torso at all rows, for `Torso.encode_inputs`.

        The input of a FrameStack is all of its frames.
        """
        batch = self.batch
        return torso.select_inputs(batch.obs, batch.first, self._select_frames(torso), batch.burn_in, len(batch.first))

    def _select_frames(self, torso: Torso) -> Tensor:
        """Return the past frames of the encoders of a torso [B, ...], the end of the batch's memory.

        They are [B, 0] for a replayed batch, whose burn-in contains the frames.
        """
        memory, frames = self.batch.memory, torso.state_size - torso.stored_state_size
        return memory[:, memory.shape[-1] - frames :] if self.batch.burn_in == 0 else memory[:, :0]


class SequenceSource(Protocol):
    """A store of sequences."""

    demonstrations: Demonstrations
    seed: int  # of draws that repeat after a resume

    def sample(self, batch: int, number: int) -> Rollout:
        """Return the `number`-th batch of sequences, the same for the same number."""

    def make_rollout(self) -> Rollout:
        """Return all rows as one column."""

    def read_rows(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return observations {name: [n, ...]} and raw actions [n, size] of rows [n]."""


class Auxiliary(ABC):
    """An auxiliary reward or loss, which may have a trainable module in a separate parameter group, `auxiliary/<name>`.

    With StreamSettings, its rewards are a stream with their strength.

    Attributes:
        name: The name of the auxiliary in the settings, set before `build` is called.

    Raises:
        ValueError: Settings exclude one another.
    """

    name: str
    Settings: type[Any] = AuxiliarySettings  # the dataclass of the settings, with defaults
    # Whether the gradient of `loss` reaches the agent's torso, through the features that the auxiliary reads.
    shapes_features: bool = False
    # Whether that gradient is added to a layer of the agent only if it agrees with the gradient of the agent's losses.
    adaptive: bool = False
    reward_weight: float = 1.0  # of the rewards, when they are added to those of the environment
    stream: RewardStream | None = None  # of the rewards, for agents with a value for each stream; None: always added
    has_record: bool = False  # whether `record` returns values
    # The agent's parameter groups that `loss` trains, of an auxiliary without a module.
    agent_groups: Set[str] = frozenset()
    needs_demonstrations: bool = False  # whether the run must have demonstrations
    # Set before `build` if the run has demonstrations of the role: returns them as sequences with this number of rows
    # after the burn-in; None: as many as the agent learns from at once.
    open_demonstrations: Callable[[int | None], SequenceSource] | None = None
    pretraining_updates: int = 0  # updates with `pretraining_loss` before the first env step; known after `build`
    # For explorers: observations {name: [n, ...]}, k raw actions for each, [n, k, size] -> the novelty of each, [n, k].
    compute_novelty: Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray] | None = None

    def __init__(self, settings: Any):
        self.settings = settings
        self.update_every: int = settings.update_every
        if isinstance(settings, StreamSettings):
            self.reward_weight = settings.strength
            if settings.strength:
                self.stream = RewardStream(
                    gamma=settings.gamma, weight=settings.strength, crosses_episodes=settings.crosses_episodes
                )

    @abstractmethod
    def build(self, agent: Agent, role: Role) -> nn.Module | None:
        """Return the trainable module and keep it for `reward` and `loss`; None: there is no module.

        Its buffers are running statistics, in float64. Those of the encoders of a `Torso` in it are updated from each
        collected rollout; `observe` updates all others.

        Args:
            agent: The agent, whose `policy.torso` computes the features.
            role: The role of the agent.

        Raises:
            ValueError: The auxiliary does not suit the agent, its observations or its actions.
        """

    def make_target_networks(self) -> dict[str, TargetNetwork[Any]]:
        """Return target networks, and networks that are never trained, by name. Called once, after `build`."""
        return {}

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        """Return rewards [T, B], without gradient; None: no rewards. They have weight 1 here."""
        return None

    def has_loss(self, update: int) -> bool:
        """Return whether there is a loss in an update of the agent, if there is a module or `agent_groups`."""
        return update % self.update_every == 0

    @abstractmethod
    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return a scalar loss, and further scalars by the name under which they are logged.

        Called only if `has_loss`.
        """

    def pretraining_loss(self, number: int, device: torch.device) -> Tensor:
        """Return the loss of one of `pretraining_updates` updates, whose numbers start at 0."""
        raise NotImplementedError(f"{type(self).__name__} has no pretraining")

    def make_pretraining_rollout(self) -> Rollout:
        """Return all rows that `pretraining_loss` learns from, in numpy."""
        raise NotImplementedError(f"{type(self).__name__} has no pretraining")

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics from a collected rollout. Called once for each."""

    def record(self, rollout: Rollout, make_inputs: Callable[[], AuxiliaryInputs]) -> np.ndarray | None:
        """Return values [T, B] that are stored with a collected rollout, float32; None if not `has_record`.

        Called once for each collected rollout, for what a replayed sequence cannot contain, such as the rows of the
        episode before it. `reward` and `loss` read them in `rollout.records`, by the name of the auxiliary.

        Args:
            rollout: The rollout, in numpy.
            make_inputs: Returns the rollout as tensors on the device, with the agent's features, without gradient.
        """
        return None

    def update_targets(self) -> None:
        """Update the target networks. Called after each optimizer step."""

    def grow(self, lanes: int) -> None:
        """Add lanes to values that are kept by lane, so that there are `lanes` lanes."""

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs in addition to the module: values that are kept by lane."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values where a mask of the same shape is True; 0 if it is False everywhere."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
