"""The network of an actor-critic agent: a torso, and a policy and a critic on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Blueprint
from algorithm.networks.heads import Head, SeparateHeads, SharedHeads
from algorithm.networks.torso import Torso
from algorithm.specs import ObsSpec

Act = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


class ActorCritic(nn.Module):
    """Statistics of the policy and values of the critic.

    As a module it is the policy alone, one step at a time: (obs, memory) -> (statistics, memory).
    """

    def __init__(self, blueprint: Blueprint, obs_specs: Mapping[str, ObsSpec], statistics: int, values: int):
        super().__init__()
        self.torso = Torso(blueprint, obs_specs)
        size = self.torso.size
        # The first policy is close to uniform, whatever the features.
        policy, critic = Head(statistics, gain=0.01), Head(values, gain=1.0)
        self.heads: SharedHeads | SeparateHeads
        if blueprint.policy or blueprint.critic:
            self.heads = SeparateHeads(size, (blueprint.policy, policy), (blueprint.critic, critic))
        else:
            self.heads = SharedHeads(size, policy, critic)
        self._act: Act | None = None

    @property
    def state(self) -> int:
        """Numbers of memory per lane."""
        return self.torso.state

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """{name: [B, ...]}, memory [B, state] -> statistics [B, S], memory [B, state]."""
        features, memory = self.torso.step(obs, memory)
        return self.heads(features)[0], memory

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`forward` on arrays, without gradient; plain layers on the CPU run on numpy views of the parameters.

        The views are taken at the first call, when the parameters have been laid out.
        """
        if self._act is None:
            self._act = self._numpy_act() or self._torch_act
        return self._act(obs, memory)

    def _numpy_act(self) -> Act | None:
        if next(self.parameters()).device.type != "cpu":
            return None
        torso, head = self.torso.numpy(), self.heads.numpy()
        if torso is None or head is None:
            return None
        return lambda obs, memory: (head(torso(obs)), memory)

    @torch.inference_mode()
    def _torch_act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        device = next(self.parameters()).device
        tensors = {name: torch.from_numpy(value).to(device) for name, value in obs.items()}
        statistics, state = self(tensors, torch.from_numpy(memory).to(device))
        return statistics.cpu().numpy(), state.cpu().numpy()
