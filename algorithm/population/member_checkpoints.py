"""The checkpoints of the members of a population, as an exchange changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.checkpointing.transfer import copy_checkpoint
from algorithm.parts.run_folder import RunFolder
from algorithm.population.exchange import ExchangePlan
from algorithm.population.weight_distribution import WeightDistribution

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
