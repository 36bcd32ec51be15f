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
from algorithm.checkpointing.transfer import copy_checkpoint
from algorithm.networks.flat_parameters import State
from algorithm.parts.run_folder import RunFolder
from algorithm.population.evolution import draw_weights, fit_weights
from algorithm.population.exchange import ExchangePlan

DRAWN, TARGETS = "parameters", "target_networks"  # kinds of flat tensors in weights.pt
DISTRIBUTION_FILE = "distribution.pt"  # distribution of the last draw, in the folder of the population


@dataclass(frozen=True, kw_only=True)
class MemberCheckpoints:
    """The checkpoints of all members.

    Attributes:
        folders: run folder of each member.
        distribution_path: file with the distribution of the last draw.
        keep: number of newest checkpoints that each member keeps.
        seed: seed of the draws.
        log: receives lines for the user.
    """

    folders: Sequence[RunFolder]
    distribution_path: Path
    keep: int
    seed: int
    log: Callable[[str], None]

    def transfer(self, plan: ExchangePlan, interval: int) -> None:
        """Copy the newest checkpoint of its parent to each member that has another one, and draw weights if planned.

        An exchange that was interrupted can be repeated: it changes the checkpoints in the same way.

        Args:
            plan: the plan of the exchange.
            interval: number of the interval that follows.

        Raises:
            CheckpointError: a checkpoint is missing or damaged.
        """
        distribution = self._find_distribution(plan.elites, interval) if plan.elites else None
        for number, member in enumerate(plan.members, 1):
            if member.parent == number and distribution is None:
                continue
            weights = None
            if distribution:
                weights = distribution.draw(np.random.default_rng([self.seed, interval, number]))
            own = self.folders[number - 1]
            with own.lock:
                copy_checkpoint(self._find_newest(member.parent), own.checkpoints(self.keep), weights)

    def _find_distribution(self, elites: Sequence[int], interval: int) -> WeightDistribution | None:
        """Return the distribution to draw from; it is in a file before the first checkpoint of an elite changes."""
        if saved := WeightDistribution.load(self.distribution_path, interval):
            return saved
        distribution = WeightDistribution.fit([self._find_newest(number) for number in elites], self.log)
        if distribution is None:
            self.log("the weights of fewer than two elites can be used: no weights are drawn")
        else:
            distribution.save(self.distribution_path, interval)
            self.log(f"the weights of all members are drawn; the elites are the members {', '.join(map(str, elites))}")
        return distribution

    def _find_newest(self, number: int) -> Checkpoint:
        folder = self.folders[number - 1]
        checkpoint = folder.checkpoints(self.keep).latest(self.log)
        if checkpoint is None:
            raise CheckpointError(f"{folder} has no checkpoint to copy")
        return checkpoint


@dataclass(frozen=True, kw_only=True)
class WeightDistribution:
    """A normal distribution of each weight, over the elites of a population.

    Attributes:
        mean: mean of each weight, of all roles and parameter groups one after the other.
        std: standard deviation of each weight.
        template: weights of the best elite by role, without target networks. Draws have its running statistics.
    """

    mean: np.ndarray
    std: np.ndarray
    template: dict[str, State]

    @classmethod
    def fit(cls, elites: Sequence[Checkpoint], log: Callable[[str], None]) -> WeightDistribution | None:
        """Return the distribution over checkpoints, the best first; None if fewer than two of them can be used.

        `log` receives a line for each checkpoint that is skipped, since it is damaged or not finite.
        """
        readable = []
        for checkpoint in elites:
            try:
                readable.append({role: checkpoint.weights(role) for role in checkpoint.roles})
            except CheckpointError as error:
                log(f"{error}: this elite is skipped")
        fitted = fit_weights([_flatten(weights) for weights in readable])
        if fitted is None:
            return None
        best = {
            role: {kind: tensors for kind, tensors in state.items() if kind != TARGETS}
            for role, state in readable[0].items()
        }
        return cls(mean=fitted[0], std=fitted[1], template=best)

    def draw(self, rng: np.random.Generator) -> dict[str, State]:
        """Return drawn weights by role, without target networks, which become copies of their sources."""
        vector, start = torch.from_numpy(draw_weights(self.mean, self.std, rng)), 0
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
