"""The contract of auxiliary rewards and losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from algorithm.agents.agent import ParameterGroup
from algorithm.networks import TargetNetwork
from algorithm.rollout import Rollout
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class AuxiliaryInputs:
    """The part of a batch and of the agent that an auxiliary may use; not of a minibatch of a prepared rollout.

    Attributes:
        rollout: The batch, as tensors.
        features: The agent's features [T+1, B, F]; in `loss` with gradient to the agent's torso, in `reward` without.
        encode: Encodes rows {name: [rows, ...]} -> [rows, F] with the agent's torso, without its memory.
    """

    rollout: Rollout
    features: Tensor
    encode: Callable[[Mapping[str, Tensor]], Tensor]


class Auxiliary(ABC):
    """An auxiliary reward or loss with a trainable module in a separate parameter group, `auxiliary/<name>`."""

    learning_rate: float
    max_grad_norm: float

    @abstractmethod
    def build(self, torso: nn.Module, role: Role) -> nn.Module:
        """Return the trainable module and keep it for `reward` and `loss`; its float64 buffers are running statistics.

        Args:
            torso: The agent's torso.
            role: The role of the agent.
        """

    def make_target_networks(self) -> dict[str, TargetNetwork[Any]]:
        """Return target networks of parts of the module, by name. Called once, after `build`."""
        return {}

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        """Return rewards [T, B], without gradient, to add to the rewards of the batch; None: no rewards."""
        return None

    @abstractmethod
    def loss(self, inputs: AuxiliaryInputs) -> Tensor:
        """Return a scalar loss."""

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics from a collected rollout. Called once for each."""

    def update_targets(self) -> None:
        """Update the target networks. Called after each optimizer step."""


def make_parameter_group(auxiliary: Auxiliary, module: nn.Module) -> ParameterGroup:
    """Return the parameter group of the module of an auxiliary."""
    return ParameterGroup(module=module, learning_rate=auxiliary.learning_rate, max_grad_norm=auxiliary.max_grad_norm)


def collect_target_networks(auxiliaries: Mapping[str, Auxiliary]) -> dict[str, TargetNetwork[Any]]:
    """Return the target networks of all auxiliaries, by `auxiliary/`, the name of the auxiliary and their names."""
    return {
        f"auxiliary/{name}/{key}": target
        for name, auxiliary in auxiliaries.items()
        for key, target in auxiliary.make_target_networks().items()
    }
