"""A model of the time of a cluster's learner: costs that are linear in sizes, and the env steps per second that follow.

The model has no network and no contention: actors do not slow each other down, and the learner has a core of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LinearCost:
    """A cost in seconds, which is a sum of terms.

    Args:
        seconds_per_unit: seconds for each unit of a quantity, by its name; `constant` is a quantity that is always 1.
    """

    seconds_per_unit: Mapping[str, float]

    def predict(self, quantities: Mapping[str, float]) -> float:
        """Return the seconds for the given quantities."""
        given = {"constant": 1.0, **quantities}
        return sum(seconds * given[name] for name, seconds in self.seconds_per_unit.items())


@dataclass(frozen=True)
class Measurement:
    """Measured seconds, and the quantities that they depend on."""

    quantities: Mapping[str, float]
    seconds: float


def fit_cost(terms: Sequence[str], measurements: Sequence[Measurement]) -> LinearCost:
    """Fit a cost with the given terms by least squares of the relative errors.

    Errors are relative, so that a large setting does not determine the cost of the small ones.
    """
    rows = [[{"constant": 1.0, **each.quantities}[name] for name in terms] for each in measurements]
    relative = np.array(rows) / np.array([[each.seconds] for each in measurements])
    scale = np.abs(relative).max(0)  # quantities may differ by many orders of magnitude
    solution = np.linalg.lstsq(relative / scale, np.ones(len(rows)), rcond=None)[0] / scale
    return LinearCost(dict(zip(terms, solution.tolist(), strict=True)))


def compute_relative_errors(cost: LinearCost, measurements: Sequence[Measurement]) -> list[float]:
    """Return (predicted - measured) / measured of each measurement."""
    return [cost.predict(each.quantities) / each.seconds - 1 for each in measurements]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One rollout of an actor, and the updates that follow it.

    Attributes:
        env_steps: env steps of the rollout.
        seconds: seconds in which an actor collects it.
        megabytes: size of the rollout.
        parameters: number of parameters, in millions.
        updates: {rows of a batch: number of updates with such a batch}.
    """

    env_steps: int
    seconds: float
    megabytes: float
    parameters: float
    updates: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class ClusterModel:
    """The costs of a cluster.

    Attributes:
        rollout: of the learner, to request a rollout, fetch it and add it to the replay; by `megabytes` and `actors`.
        publish: of the learner, to publish a version of the weights; by `parameters`.
        receive: of an actor, to receive and copy the weights; by `parameters`.
        update: of the learner, for a batch; by `rows`.
    """

    rollout: LinearCost
    publish: LinearCost
    receive: LinearCost
    update: LinearCost

    def compute_learner_seconds(self, load: Workload, actors: int) -> float:
        """Return the seconds that the learner spends on one rollout."""
        return (
            self.rollout.predict({"megabytes": load.megabytes, "actors": actors})
            + self.publish.predict({"parameters": load.parameters})
            + sum(count * self.update.predict({"rows": rows}) for rows, count in load.updates.items())
        )

    def compute_actor_seconds(self, load: Workload) -> float:
        """Return the seconds that an actor spends on one rollout."""
        return load.seconds + self.receive.predict({"parameters": load.parameters})

    def predict_speed(self, load: Workload, actors: int) -> float:
        """Return the env steps per second: the actors limit them, or the learner."""
        rollouts = min(actors / self.compute_actor_seconds(load), 1 / self.compute_learner_seconds(load, actors))
        return load.env_steps * rollouts

    def find_saturation(self, load: Workload, limit: int = 100_000) -> int:
        """Return the smallest number of actors for which the learner is the limit; `limit` if there is none below it.

        The learner's seconds do not fall with the number of actors, so that all larger numbers saturate it too.
        """
        low, high = 1, limit
        while low < high:
            middle = (low + high) // 2
            if middle * self.compute_learner_seconds(load, middle) >= self.compute_actor_seconds(load):
                high = middle
            else:
                low = middle + 1
        return low
