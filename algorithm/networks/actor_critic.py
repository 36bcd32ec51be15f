"""The network of an actor-critic agent: a torso, and a policy and a critic on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.distributions import FORBIDDEN
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.deviation import Deviation
from algorithm.networks.heads import ActionHead, Head, SeparateHeads, SharedHeads
from algorithm.networks.torso import Torso
from algorithm.specs import MASK, ObsSpec

Act = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


class ActorCritic(nn.Module):
    """Statistics of the policy and values of the critic.

    `deviation` makes statistics of the policy's columns where there are continuous actions. `encoded` is how many
    numbers of an action the critic reads beside the features (0: none). As a module it is the policy alone, one step
    at a time: (obs, memory) -> (statistics, memory).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        obs_specs: Mapping[str, ObsSpec],
        statistics: int,
        values: int,
        deviation: Deviation | None = None,
        encoded: int = 0,
    ):
        super().__init__()
        self.masked = obs_specs[MASK].shape[0] if MASK in obs_specs else 0  # logits that may be forbidden
        self.torso = Torso(blueprint, {name: spec for name, spec in obs_specs.items() if name != MASK})
        self.statistics = statistics
        self.deviation: Any = deviation
        size = self.torso.size
        columns = statistics - 2 * deviation.means + deviation.columns if deviation else statistics
        # The first policy is close to uniform, whatever the features.
        policy, critic = Head(columns, gain=0.01), Head(values, gain=1.0)
        self.heads: SharedHeads | SeparateHeads
        if blueprint.policy or blueprint.critic:
            self.heads = SeparateHeads(size, (blueprint.policy, policy), (blueprint.critic, critic))
        else:
            self.heads = SharedHeads(size, policy, critic)
        self.advantage: Any = ActionHead(size, encoded, blueprint.critic) if encoded else None
        self._act: Act | None = None

    @property
    def state(self) -> int:
        """Numbers of memory per lane."""
        return self.torso.state

    def outputs(self, features: Tensor) -> Tensor:
        """Statistics and values side by side: [..., F] -> [..., S + values]. Nothing is masked yet."""
        outputs = self.heads.joint(features)
        return self.deviation(outputs) if self.deviation else outputs

    def mask(self, statistics: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Statistics [n, ..., S] of the first n rows of `obs`, the logits of forbidden actions at `FORBIDDEN`."""
        if not self.masked:
            return statistics
        others, logits = statistics.split([self.statistics - self.masked, self.masked], -1)
        return torch.cat((others, logits.masked_fill(obs[MASK][: len(logits)] == 0, FORBIDDEN)), -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """{name: [B, ...]}, memory [B, state] -> statistics [B, S], memory [B, state]."""
        features, memory = self.torso.step(obs, memory)
        return self.mask(self.outputs(features)[..., : self.statistics], obs), memory

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`forward` on arrays, without gradient; plain layers on the CPU run on numpy views of the parameters.

        The views are taken at the first call, when the parameters have been laid out.
        """
        if self._act is None:
            self._act = self._numpy_act() or self._torch_act
        return self._act(obs, memory)

    def act_through(self, act: Act) -> None:
        """Let `act` answer from now on."""
        self._act = act

    def _numpy_act(self) -> Act | None:
        if next(self.parameters()).device.type != "cpu":
            return None
        torso, head = self.torso.numpy(), self.heads.numpy()
        if torso is None or head is None:
            return None
        policy = [torso, head, *([self.deviation.numpy()] if self.deviation else [])]

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            statistics: Any = obs
            for part in policy:
                statistics = part(statistics)
            if self.masked:
                statistics[:, -self.masked :][obs[MASK] == 0] = FORBIDDEN
            return statistics, memory

        return act

    @torch.inference_mode()
    def _torch_act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        device = next(self.parameters()).device
        tensors = {name: torch.from_numpy(value).to(device) for name, value in obs.items()}
        statistics, state = self(tensors, torch.from_numpy(memory).to(device))
        return statistics.cpu().numpy(), state.cpu().numpy()
