"""Policies: networks that act one step at a time on numpy arrays, and copies of them for another device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.distributions import MASKED_LOGIT
from algorithm.distributions.categorical import find_allowed_combinations, one_hot_combinations
from algorithm.networks.encoders import RunningMoments
from algorithm.networks.flat_parameters import flatten_tensors, view_contiguous
from algorithm.networks.layers import collect_noise
from algorithm.networks.normalization import find_batch_norms
from algorithm.networks.torso import Torso
from algorithm.specs import ACTION_MASK, ObsSpec

ActFunction = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray]]


class Policy(nn.Module):
    """A network whose `forward` is one step of acting: (observations, memory) -> (statistics, next memory)."""

    torso: Torso
    is_differentiable = True  # whether the statistics have a gradient

    def __init__(self) -> None:
        super().__init__()
        self._act: ActFunction | None = None

    @property
    def state_size(self) -> int:
        """Size of the memory of one lane."""
        return self.torso.state_size

    @property
    def stored_state_size(self) -> int:
        """Size of the part of the memory, from its start, that a replay stores."""
        return self.torso.stored_state_size

    @abstractmethod
    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Run one step: {name: [B, ...]}, memory [B, state_size] -> statistics [B, S], next memory."""

    @torch.no_grad()
    def run_dry_step(self, obs_specs: Mapping[str, ObsSpec]) -> None:
        """Run one step on zeros in evaluation mode: an invalid network raises its error here."""
        obs = {
            name: torch.from_numpy(np.zeros((1, *spec.shape), np.dtype(spec.dtype))) for name, spec in obs_specs.items()
        }
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        self(obs, torch.zeros(1, self.state_size))
        for module, training in modes:
            module.training = training

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run `forward` on arrays, without gradient; in numpy if the network is on the CPU and has a numpy form.

        The first call chooses the way; the parameters must have been flattened by then.
        """
        if self._act is None:
            on_cpu = next(self.parameters()).device.type == "cpu"
            self._act = (self.numpy() if on_cpu else None) or self._act_in_torch
        return self._act(obs, memory)

    def compute_memory(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> np.ndarray:
        """Return the next memory of `act`; without the network if the memory consists of past frames, or is empty."""
        return self.act(obs, memory)[1] if self.stored_state_size else self.torso.push_frames(obs, memory)

    def numpy(self) -> ActFunction | None:
        """Return `forward` in numpy on views of the parameters; None if a part of the network has no numpy form."""
        return None

    @torch.inference_mode()
    def _act_in_torch(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        device = next(self.parameters()).device
        tensors = {name: torch.from_numpy(value).to(device) for name, value in obs.items()}
        statistics, next_memory = self(tensors, torch.from_numpy(memory).to(device))
        return statistics.cpu().numpy(), next_memory.cpu().numpy()


class CombinationPolicy(Policy):
    """A policy with a logit or a value of each of the K combinations of discrete branches.

    Args:
        obs_specs: Observations by name; an action mask among them restricts the actions.
        branches: Number of actions of each branch.
    """

    def __init__(self, obs_specs: Mapping[str, ObsSpec], branches: Sequence[int]):
        super().__init__()
        self.has_mask, self.branches = ACTION_MASK in obs_specs, branches
        self.combination_codes = one_hot_combinations(branches)

    def mask_logits(self, logits: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Set the logits or values [n, ..., K] of forbidden combinations to MASKED_LOGIT.

        Args:
            logits: Logits or values [n, ..., K].
            obs: Observations {name: [m, ...]} with m >= n; the mask of the first n rows is used.
        """
        self.combination_codes = self.combination_codes.to(logits.device)  # moves to the device once
        if not self.has_mask:
            return logits
        mask = obs[ACTION_MASK][: len(logits)]
        allowed = find_allowed_combinations(mask, self.branches, self.combination_codes)
        return logits.masked_fill(allowed == 0, MASKED_LOGIT)


class InferenceCopy:
    """A copy of a policy, for acting on another device than the learning device.

    Acting in a few lanes is slow on a GPU. `source.act` uses the copy from its construction on. After a change of the
    source set `is_outdated`: the next act copies parameters, running statistics and noise, each in one transfer, for
    any number of changes.

    Args:
        source: The policy that learns, flattened by FlatParameters.
        copy: A policy of the same structure.
        device: The device of the copy.
    """

    def __init__(self, source: Policy, copy: Policy, device: torch.device):
        self.source, self.copy = source, copy
        pairs = zip(_list_mutable_tensors(source), _list_mutable_tensors(copy), strict=True)
        self._tensor_pairs = [
            (flatten_tensors(copied, copied[0].dtype, device), view_contiguous(sources))
            for sources, copied in pairs
            if copied
        ]
        self.is_outdated = True
        source._act = self.act

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Act as `source.act` would, with noise only if the source is in training mode."""
        if self.is_outdated:
            for copied, source in self._tensor_pairs:
                copied.copy_(source)
            self.is_outdated = False
        if self.copy.training != self.source.training:
            self.copy.train(self.source.training)
        return self.copy.act(obs, memory)


def _list_mutable_tensors(network: nn.Module) -> Iterator[list[Tensor]]:
    """Iterate over the parameters, the running statistics and the noise of a network, each kind as a list."""
    yield list(network.parameters())
    moments = [module for module in network.modules() if isinstance(module, RunningMoments)]
    yield [buffer for module in moments for buffer in module.buffers()]
    yield [norm.running for norm in find_batch_norms([network])]
    yield collect_noise([network])
