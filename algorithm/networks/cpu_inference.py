"""Acting on another device than learning: a copy of the policy that is brought up to date when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.flat_parameters import flatten, span
from algorithm.networks.noisy import noise_of
from algorithm.networks.policy import Policy
from algorithm.networks.running_statistics import RunningMoments


class ActingCopy:
    """Acts in the place of `source`, which learns on a device where acting in a few lanes is slow.

    `copy` is a twin of `source`, which must have been laid out by `Parameters`. Whoever changes the source says so by
    `outdated`; the next act first fetches its parameters, running statistics and noise, each in one transfer, however
    many changes there were.
    """

    def __init__(self, source: Policy, copy: Policy, device: torch.device):
        self.source, self.copy = source, copy
        twins = zip(_kinds(source), _kinds(copy), strict=True)
        self._pairs = [(flatten(own, own[0].dtype, device), span(originals)) for originals, own in twins if own]
        self.outdated = True
        source.act_through(self.act)

    def act(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `source.act` gives, noisy or not as the source is (`training`)."""
        if self.outdated:
            for own, original in self._pairs:
                own.copy_(original)
            self.outdated = False
        if self.copy.training != self.source.training:
            self.copy.train(self.source.training)
        return self.copy.act(obs, memory)


def _kinds(network: nn.Module) -> Iterator[list[Tensor]]:
    """The numbers of a network that change: parameters, running statistics, noise."""
    yield list(network.parameters())
    moments = [module for module in network.modules() if isinstance(module, RunningMoments)]
    yield [buffer for module in moments for buffer in module.buffers()]
    yield noise_of([network])
