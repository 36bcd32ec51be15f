"""The contract of extra rewards and losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from algorithm.networks import TargetNetwork
from algorithm.rollout import Rollout
from algorithm.specs import Role


@dataclass(frozen=True)
class AuxiliaryInputs:
    """What an auxiliary sees of a batch: the rollout, and the agent's features of it."""

    rollout: Rollout
    features: Tensor  # [T+1, B, F]; in `loss` their gradient reaches the agent's body, in `reward` there is none
    target_features: Callable[[], Tensor]  # [T+1, B, F] of the agent's lagging network, without gradient
    encode: Callable[[Mapping[str, Tensor]], Tensor]  # {name: [rows, ...]} -> [rows, F], in front of the memory
    q: Callable[[Tensor, Tensor], Tensor]  # features [..., F], samples [..., size] -> action values [...]

    @property
    def same_episode(self) -> Tensor:
        """[T, B] rows t and t+1 belong to one episode."""
        return self.rollout.same_episode


class Auxiliary(ABC):
    """Its module is a group of the parameters of its own, `auxiliary/<name>`."""

    learning_rate: float
    max_grad_norm: float

    @abstractmethod
    def build(self, torso: nn.Module, role: Role) -> nn.Module:
        """The trainable module, kept for `reward` and `loss`; float64 buffers of it are running statistics."""

    def make_target_networks(self) -> dict[str, TargetNetwork]:
        """Copies that follow parts of the module, by name; called once, after `build`."""
        return {}

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        """[T, B] to be added to a copy of the rewards, without gradient; None for nothing."""
        return None

    @abstractmethod
    def loss(self, inputs: AuxiliaryInputs) -> Tensor:
        """A scalar."""

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics from a collected rollout, once for each."""

    def update_targets(self) -> None:
        """Called after each optimiser step."""
