"""The checkpoints of the members of a population, as an exchange changes them: by copies, or by draws of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.atomic_io import open_replacement
from algorithm.checkpointing.checkpoint import READ_ERRORS, Checkpoint
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.checkpointing.store import copy_checkpoint
from algorithm.config.sections import BaseConfig
from algorithm.networks.flat_parameters import State
from algorithm.population.exchange import MIN_ELITES
from algorithm.population.folder import PopulationFolder, PopulationState

DRAWN, TARGETS = "parameters", "target_networks"  # kinds of flat tensors in weights.pt
DISTRIBUTION_FILE = "distribution.pt"  # distribution of the last draw, in the folder of the population
MAX_STD, MIN_STD = 1.0, 1e-4  # bounds of the standard deviation of a drawn weight
Log = Callable[[str], None]


def transfer_checkpoints(folder: PopulationFolder, base: BaseConfig, log: Log, state: PopulationState) -> None:
    """Copy the newest checkpoint of its parent to each member that has another one, and draw weights if planned.

    An exchange that was interrupted can be repeated: it changes the checkpoints in the same way.

    Args:
        folder: the folder of the population.
        base: seed of the draws, and the number of newest checkpoints that each member keeps.
        log: receives lines for the user.
        state: the plan of the interval that follows.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """

    def find_newest(number: int) -> Checkpoint:
        member = folder.members[number - 1]
        checkpoint = member.checkpoints(base.keep_checkpoints).latest(log)
        if checkpoint is None:
            raise CheckpointError(f"{member} has no checkpoint to copy")
        return checkpoint

    path, distribution = folder.path / DISTRIBUTION_FILE, None
    if state.elites and (distribution := WeightDistribution.load(path, state.interval)) is None:
        distribution = WeightDistribution.fit(list(map(find_newest, state.elites)), log)
        if distribution is None:
            log("the weights of fewer than two elites can be used: no weights are drawn")
        else:
            distribution.save(path, state.interval)  # before the first checkpoint of an elite changes
            log(f"the weights of all members are drawn; the elites are the members {', '.join(map(str, state.elites))}")
    for number, (member, plan) in enumerate(zip(folder.members, state.members, strict=True), 1):
        if plan.parent != number or distribution:
            rng = np.random.default_rng([base.seed, state.interval, number])
            weights = distribution.draw(rng) if distribution else None
            with member.lock:
                copy_checkpoint(find_newest(plan.parent), member.checkpoints(base.keep_checkpoints), weights)


@dataclass(frozen=True, kw_only=True)
class WeightDistribution:
    """A normal distribution of each weight, over the elites of a population.

    Attributes:
        mean: mean of each weight, of all roles and parameter groups one after the other.
        std: standard deviation of each weight, from `MIN_STD` to `MAX_STD`.
        template: weights of the best elite by role, without target networks. Draws have its running statistics.
    """

    mean: np.ndarray
    std: np.ndarray
    template: dict[str, State]

    @classmethod
    def fit(cls, elites: Sequence[Checkpoint], log: Log) -> WeightDistribution | None:
        """Return the distribution over checkpoints, the best first; None if fewer than two of them can be used.

        `log` receives a line for each checkpoint that is skipped, since it is damaged or not finite.
        """
        readable = []
        for checkpoint in elites:
            try:
                readable.append({role: checkpoint.weights(role) for role in checkpoint.roles})
            except CheckpointError as error:
                log(f"{error}: this elite is skipped")
        if len(readable) < MIN_ELITES:
            return None
        vectors = np.stack([_flatten(weights) for weights in readable]).astype(np.float64)
        best = {
            role: {kind: tensors for kind, tensors in state.items() if kind != TARGETS}
            for role, state in readable[0].items()
        }
        return cls(mean=vectors.mean(axis=0), std=vectors.std(axis=0).clip(MIN_STD, MAX_STD), template=best)

    def draw(self, rng: np.random.Generator) -> dict[str, State]:
        """Return drawn weights by role, without target networks, which become copies of their sources."""
        vector, start = torch.from_numpy(rng.normal(self.mean, self.std).astype(np.float32)), 0
        drawn: dict[str, State] = {}
        for role, state in self.template.items():
            groups = {}
            for name, tensor in state[DRAWN].items():
                groups[name] = vector[start : start + len(tensor)].clone()
                start += len(tensor)
            drawn[role] = {**state, DRAWN: groups}
        return drawn

    def save(self, path: Path, interval: int) -> None:
        """Write the distribution, and the number of the interval before which weights are drawn, to a file."""
        arrays = {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}
        with open_replacement(path) as file:
            torch.save({"interval": interval, **arrays, "template": self.template}, file)

    @classmethod
    def load(cls, path: Path, interval: int) -> WeightDistribution | None:
        """Return the distribution in a file; None if it does not exist, or is for another interval or damaged."""
        try:
            saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if saved["interval"] != interval:
                return None
            return cls(mean=saved["mean"].numpy(), std=saved["std"].numpy(), template=saved["template"])
        except READ_ERRORS:
            return None


def _flatten(weights: dict[str, State]) -> np.ndarray:
    """Return the parameters of all roles and groups as one vector."""
    return np.concatenate([tensor.numpy() for state in weights.values() for tensor in state[DRAWN].values()])
