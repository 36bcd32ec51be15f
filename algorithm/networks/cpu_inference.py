"""Acting on another device than learning: a copy of the policy that is brought up to date when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.flat_parameters import flatten_tensors, view_contiguous
from algorithm.networks.noisy import collect_noise
from algorithm.networks.policy import Policy
from algorithm.networks.running_statistics import RunningMoments


class InferenceCopy:
    """Acts in the place of `source`, which learns on a device where acting in a few lanes is slow.

    `copy` is a twin of `source`, which must have been laid out by `FlatParameters`. Whoever changes the source says so by
    `outdated`; the next act first fetches its parameters, running statistics and noise, each in one transfer, however
    many changes there were.
    """

    def __init__(self, source: Policy, copy: Policy, device: torch.device):
        self.source, self.copy = source, copy
        pairs = zip(_mutable_tensors(source), _mutable_tensors(copy), strict=True)
        self._tensor_pairs = [
            (flatten_tensors(copied, copied[0].dtype, device), view_contiguous(sources))
            for sources, copied in pairs
            if copied
        ]
        self.is_outdated = True
        source.set_act_function(self.act)

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `source.act` gives, noisy or not as the source is (`training`)."""
        if self.is_outdated:
            for copied, source in self._tensor_pairs:
                copied.copy_(source)
            self.is_outdated = False
        if self.copy.training != self.source.training:
            self.copy.train(self.source.training)
        return self.copy.act(obs, memory)


def _mutable_tensors(network: nn.Module) -> Iterator[list[Tensor]]:
    """The numbers of a network that change: parameters, running statistics, noise."""
    yield list(network.parameters())
    moments = [module for module in network.modules() if isinstance(module, RunningMoments)]
    yield [buffer for module in moments for buffer in module.buffers()]
    yield collect_noise([network])
