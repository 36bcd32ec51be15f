"""What acts: one step at a time, on arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.torso import Torso
from algorithm.specs import ObsSpec

ActFunction = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


class Policy(nn.Module):
    """A network that is, as a module, one step of acting: (obs, memory) -> (statistics, memory)."""

    torso: Torso

    def __init__(self) -> None:
        super().__init__()
        self._act: ActFunction | None = None

    @property
    def state_size(self) -> int:
        """Numbers of memory per lane."""
        return self.torso.state_size

    @abstractmethod
    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """{name: [B, ...]}, memory [B, state] -> statistics [B, S], memory [B, state]."""

    @torch.no_grad()
    def run_dry_step(self, obs_specs: Mapping[str, ObsSpec]) -> None:
        """Run one step on zeros, as in evaluation: a network that cannot work raises here."""
        obs = {
            name: torch.from_numpy(np.zeros((1, *spec.shape), np.dtype(spec.dtype))) for name, spec in obs_specs.items()
        }
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        self(obs, torch.zeros(1, self.state_size))
        for module, training in modes:
            module.training = training

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`forward` on arrays, without gradient; in numpy where the network has such a form and is on the processor.

        How is decided at the first call, when the parameters have been laid out.
        """
        if self._act is None:
            on_cpu = next(self.parameters()).device.type == "cpu"
            self._act = (self.numpy() if on_cpu else None) or self._act_in_torch
        return self._act(obs, memory)

    def set_act_function(self, act: ActFunction) -> None:
        """Let `act` answer from now on."""
        self._act = act

    def numpy(self) -> ActFunction | None:
        """`forward` in numpy on views of the parameters; None where a part has no such form."""
        return None

    @torch.inference_mode()
    def _act_in_torch(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        device = next(self.parameters()).device
        tensors = {name: torch.from_numpy(value).to(device) for name, value in obs.items()}
        statistics, next_memory = self(tensors, torch.from_numpy(memory).to(device))
        return statistics.cpu().numpy(), next_memory.cpu().numpy()
