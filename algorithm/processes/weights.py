"""The weights of agents as flat arrays, which the learner of a run publishes and its services receive."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from algorithm.config.loader import Settings
from algorithm.networks import FlatParameters
from algorithm.parts.components_builder import make_agent, make_auxiliaries
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import choose_placement
from algorithm.specs import Role
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner

Weights = Mapping[str, np.ndarray]  # by role: the array of `pack_weights`


def pack_weights(parameters: FlatParameters, with_targets: bool) -> np.ndarray:
    """Return the trained parameters and both kinds of running statistics as one flat float32 array.

    The target networks are included if `with_targets` is True: actors need them only for TD errors. The statistics of
    observations are float64: each takes two values of the array, so that no bit is lost.
    """
    statistics = parameters.statistics.double().cpu().numpy().view(np.float32)
    tensors = _list_tensors(parameters, with_targets)
    return np.concatenate([*(tensor.cpu().numpy() for tensor in tensors), statistics])


def _list_tensors(parameters: FlatParameters, with_targets: bool) -> list[Tensor]:
    return [parameters.all_parameters] if with_targets else [parameters.vector, parameters.batch_statistics]


def pack_all_weights(by_role: Mapping[str, AgentComponents]) -> Weights:
    """Return the weights of all roles."""
    return {
        role: pack_weights(components.learner.parameters, components.scheduler.records_td_errors)
        for role, components in by_role.items()
    }


class WeightReceiver(Learner):
    """A learner in another process, which receives its weights from the learner of the run, and never learns."""

    def receive(self, weights: np.ndarray, updates: int, rows_seen: int) -> None:
        """Load the array of `pack_weights` with the counters of the learner, and resample the noise.

        Args:
            weights: the array; it is copied, and may be read-only.
            updates: the number of updates of the weights.
            rows_seen: `rows_seen` of the learner.
        """
        self.load_weights(weights)
        self._counts[:] = updates, rows_seen
        self.noise.resample()

    def load_weights(self, weights: np.ndarray) -> None:
        """Load the array of `pack_weights`, which is copied, and may be read-only."""
        parameters = self.parameters
        has_targets = len(weights) == len(parameters.all_parameters) + 2 * len(parameters.statistics)
        tensors = _list_tensors(parameters, has_targets)
        *parts, statistics = np.split(weights, np.cumsum([len(tensor) for tensor in tensors]))
        for tensor, values in zip(
            [*tensors, parameters.statistics], [*parts, statistics.view(np.float64)], strict=True
        ):
            tensor.copy_(torch.from_numpy(values))
        self._mark_outdated()


def make_receiver(
    settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator, device: str
) -> WeightReceiver:
    """Return a learner with a new agent, whose weights are received.

    Args:
        settings: the settings of the role.
        folder: the run folder, with the network.
        role: the role.
        rng: the generator of the agent's samples.
        device: the device of its networks.
    """
    agent = make_agent(settings, folder, role, rng)
    base = settings.base.model_copy(update={"device": device, "precision": "float32"})
    placement = choose_placement(base, agent, role)
    return WeightReceiver(agent, role, make_auxiliaries(settings), base.max_step, placement)
