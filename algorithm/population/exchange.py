"""Exchanges between the members of a population: copies of the best checkpoints, or draws of weights.

Population-based training follows Jaderberg et al. 2017 (arXiv 1711.09846, truncation selection), the draws of weights
follow the cross-entropy method. All random numbers come from the generator that is passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.atomic_io import open_replacement
from algorithm.checkpointing.checkpoint import READ_ERRORS, Checkpoint, CheckpointError
from algorithm.checkpointing.store import copy_checkpoint
from algorithm.config.sections import BaseConfig, PopulationConfig
from algorithm.networks.flat_parameters import State
from algorithm.population.members import MemberPlan, PopulationFolder, PopulationState
from algorithm.population.setting_spaces import SettingSpaces
from algorithm.runs.lineage import LineageRow

Return = float | None  # the mean return of an evaluation; None: the member failed
MIN_ELITES = 2  # the standard deviation over a single elite is 0
DRAWN, TARGETS = "parameters", "target_networks"  # kinds of flat tensors in weights.pt
DISTRIBUTION_FILE = "distribution.pt"  # distribution of the last draw, in the folder of the population
MAX_STD, MIN_STD = 1.0, 1e-4  # bounds of the standard deviation of a drawn weight
Log = Callable[[str], None]


def plan_copies(
    spaces: SettingSpaces, config: PopulationConfig, rows: Sequence[LineageRow], rng: np.random.Generator
) -> PopulationState:
    """Plan population-based training, from the rows of all members in their order.

    The worst members copy one of the best, and perturb its settings.
    """
    members, returns = [], [row.mean_return for row in rows]
    for member, parent in enumerate(choose_parents(returns, config.exchange_fraction, rng)):
        settings = rows[parent].settings
        if member != parent:
            settings = spaces.perturb(settings, config, rng)
        members.append(MemberPlan(parent=parent + 1, settings=settings))
    return PopulationState(interval=rows[0].interval + 1, members=members, is_transferred=False)


class DrawWeights:
    """The cross-entropy method: the weights of all members are drawn from a distribution over those of the elites.

    It is the evolver of Advanced-Soft-Actor-Critic, with these changes: only members with enough evaluations are
    elites, there are at least two of them, and a failed evaluation counts as none. `state` is the
    `PopulationState.exchange` of a population that continues, and empty for a new one.
    """

    def __init__(self, spaces: SettingSpaces, config: PopulationConfig, state: Mapping[str, Any]):
        self.spaces, self.config = spaces, config
        counts = {path: [1] * len(space.choices) for path, space in spaces.by_path.items() if space.choices}
        self._returns: list[list[float]] = state.get("returns", [])  # of each member, since the last draw
        self._selected: list[int] = state.get("selected", [])  # the number of draws in which each member was an elite
        self._counts: dict[str, list[int]] = state.get("counts", counts)
        self._started = time.monotonic() - state.get("seconds", 0.0)

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> PopulationState:
        """Return the start of the next interval, from the rows of all members of this one, in their order."""
        self._returns = self._returns or [[] for _ in rows]
        self._selected = self._selected or [0] * len(rows)
        for returns, row in zip(self._returns, rows, strict=True):
            if row.mean_return is None:
                returns.clear()  # the member starts again, with the weights of another one
            else:
                returns.append(row.mean_return)
        config = self.config
        elites = select_elites(self._returns, config.evolver_cem_best, config.evolver_cem_min_length)
        members = self._replace_failed(rows, elites, rng)
        fewest = min(map(len, self._returns))
        is_late = time.monotonic() - self._started >= 60 * config.evolver_cem_time
        is_due = fewest >= (config.evolver_cem_min_length if is_late else config.evolver_cem_length)
        if is_due:
            self._count_elites(rows, elites)
            least, threshold = int(np.argmin(self._selected)), config.evolver_remove_worst
            if threshold != -1 and np.mean(self._selected) - self._selected[least] >= threshold:
                self._selected = [int(member in elites) for member in range(len(rows))]
                members[least] = replace(members[least], settings=self.spaces.sample(rng, self._counts))
            self._returns = [[] for _ in rows]
            self._started = time.monotonic()
        return PopulationState(
            interval=rows[0].interval + 1,
            members=members,
            elites=[member + 1 for member in elites] if is_due else [],
            is_transferred=False,
            exchange={
                "returns": [list(returns) for returns in self._returns],
                "selected": list(self._selected),
                "counts": {path: list(counts) for path, counts in self._counts.items()},
                "seconds": time.monotonic() - self._started,
            },
        )

    def _replace_failed(
        self, rows: Sequence[LineageRow], elites: Sequence[int], rng: np.random.Generator
    ) -> list[MemberPlan]:
        """Return plans in which members that failed copy an elite, or the best member while there is no elite."""
        best = elites or rank_members([row.mean_return for row in rows])[:1]
        sources = [rows[member] for member in best if rows[member].mean_return is not None]
        plans = []
        for row in rows:
            parent = row if row.mean_return is not None or not sources else sources[int(rng.integers(len(sources)))]
            plans.append(MemberPlan(parent=parent.member, settings=parent.settings))
        return plans

    def _count_elites(self, rows: Sequence[LineageRow], elites: Sequence[int]) -> None:
        """Count the elites, and the choices that they have."""
        for member in elites:
            self._selected[member] += 1
            for path, counts in self._counts.items():
                choices = self.spaces.by_path[path].choices or ()
                if (value := rows[member].settings[path]) in choices:
                    counts[choices.index(value)] += 1


def rank_members(returns: Sequence[Return]) -> list[int]:
    """Return the members from best to worst; failed members are last, and equal returns keep their order."""
    return sorted(range(len(returns)), key=lambda member: (returns[member] is None, -(returns[member] or 0.0)))


def choose_parents(returns: Sequence[Return], fraction: float, rng: np.random.Generator) -> list[int]:
    """Return for each member the member whose checkpoint it continues with, most often itself.

    The worst `fraction` of the members, at least one if it is positive, copy members drawn uniformly from the best
    `fraction`. A failed member always copies one of the best; not all members have failed.
    """
    ranked = rank_members(returns)
    healthy = [member for member in ranked if returns[member] is not None]
    count = min(max(1, int(len(ranked) * fraction)), len(ranked) // 2) if fraction else 0
    best = healthy[: max(1, count)]
    replaced = {member for member in ranked[len(ranked) - count :] if member not in best}
    replaced |= set(ranked) - set(healthy)
    return [int(rng.choice(best)) if member in replaced else member for member in range(len(returns))]


def select_elites(returns: Sequence[Sequence[float]], fraction: float, min_length: int) -> list[int]:
    """Return the elites, from best to worst: the best `fraction` of the members by mean return, at least two.

    `returns` are those of each member since the last step, of which an elite has at least `min_length`.
    """
    means = [float(np.mean(each)) if len(each) >= min_length else None for each in returns]
    ranked = [member for member in rank_members(means) if means[member] is not None]
    return ranked[: max(MIN_ELITES, int(len(returns) * fraction))]


def transfer_checkpoints(folder: PopulationFolder, base: BaseConfig, log: Log, state: PopulationState) -> None:
    """Copy the newest checkpoint of its parent to each member that has another one, and draw weights if planned.

    `state` is the plan of the interval that follows. An exchange that was interrupted can be repeated: it changes the
    checkpoints in the same way. Raises CheckpointError if a checkpoint is missing or damaged.
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

    mean: torch.Tensor
    std: torch.Tensor
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
        flat = [
            torch.cat([tensor for state in weights.values() for tensor in state[DRAWN].values()])
            for weights in readable
        ]
        vectors = torch.stack(flat).numpy().astype(np.float64)
        best = {
            role: {kind: tensors for kind, tensors in state.items() if kind != TARGETS}
            for role, state in readable[0].items()
        }
        mean, std = vectors.mean(axis=0), vectors.std(axis=0).clip(MIN_STD, MAX_STD)
        return cls(mean=torch.from_numpy(mean), std=torch.from_numpy(std), template=best)

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
        with open_replacement(path) as file:
            torch.save({"interval": interval, **vars(self)}, file)

    @classmethod
    def load(cls, path: Path, interval: int) -> WeightDistribution | None:
        """Return the distribution in a file; None if it does not exist, or is for another interval or damaged."""
        try:
            saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return cls(**saved) if saved.pop("interval") == interval else None
        except READ_ERRORS:
            return None
