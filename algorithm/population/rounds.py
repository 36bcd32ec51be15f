"""The rounds of a population: its members train for an interval, are evaluated, and exchange weights and settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from algorithm.config.loader import Settings
from algorithm.population.exchange import Exchange, rank_members
from algorithm.population.folder import LineageRow, MemberPlan, PopulationFolder, PopulationState
from algorithm.population.member import MemberFailed


class Population:
    """A population, which alternates between training and exchanges until its members end.

    All members train for the same interval before any is compared. So the result does not depend on the speed of
    processes, and a population that was interrupted continues with the exchanges of one that was not.

    Args:
        folder: the folder of the population.
        settings: its settings.
        train: trains members, as `MemberFleet.train`.
        exchange: plans the next interval.
        transfer: changes the checkpoints of members as a plan requires.
        log: receives lines for the user.
    """

    def __init__(
        self,
        folder: PopulationFolder,
        settings: Settings,
        train: Callable[[Sequence[LineageRow]], Iterator[tuple[LineageRow, LineageRow | MemberFailed]]],
        exchange: Exchange,
        transfer: Callable[[PopulationState], None],
        log: Callable[[str], None],
    ):
        self.folder, self.settings, self.config = folder, settings, settings.population
        self.train, self.exchange, self.transfer, self.log = train, exchange, transfer, log
        self.state = folder.read_state()
        self.lineage = [row for row in folder.read_lineage(log) if not self._continues(row)]
        if all(row.mean_return is None for row in self._list_rows()):  # their common cause may be repaired
            self.lineage = [row for row in self.lineage if row.interval < self.state.interval]
        exchange.restore(self.state.exchange)

    def run(self) -> None:
        """Train until a member reaches the goal, or all members have ended.

        Raises:
            MemberFailed: all members have failed in an interval.
            UserError: a setting does not fit the members.
        """
        if not self.state.is_transferred:
            self._transfer()
        while not self._is_goal_reached():
            self._train_interval()
            rows = self._list_rows()
            if self._is_goal_reached() or all(row.mean_return is None or self._is_over(row) for row in rows):
                return
            self._exchange(rows)

    def _is_over(self, row: LineageRow) -> bool:
        """Return whether a member has ended after an interval: it has reached the goal, or `max_step`."""
        max_step = self.settings.base.max_step
        goal = self.settings.goal.return_ if self.settings.goal else None
        # The goal may have changed since the row was written.
        reached = row.goal_reached and goal is not None and row.goal is not None and row.goal >= goal
        return reached or (max_step is not None and row.env_steps >= max_step)

    def _continues(self, row: LineageRow) -> bool:
        """Return whether a member has to continue an interval that it had ended before the population was resumed.

        It had ended the interval at a limit or a goal of the run, which has changed.
        """
        is_last = row.interval == self.state.interval
        return is_last and row.env_steps < self.state.interval * self.config.interval and not self._is_over(row)

    def _is_goal_reached(self) -> bool:
        return any(row.goal_reached and self._is_over(row) for row in self._list_rows())

    def _list_rows(self) -> list[LineageRow]:
        """Return the rows of the current interval, by member."""
        return [row for row in self.lineage if row.interval == self.state.interval]

    def _list_tasks(self) -> list[LineageRow]:
        """Return the plans of all members that have not ended the current interval."""
        done, interval = {row.member for row in self._list_rows()}, self.state.interval
        return [
            LineageRow(
                interval=interval,
                member=member,
                parent=plan.parent,
                env_steps=interval * self.config.interval,
                settings=plan.settings,
                mean_return=None,
            )
            for member, plan in enumerate(self.state.members, 1)
            if member not in done
        ]

    def _train_interval(self) -> None:
        """Train all members that have not ended the current interval, until one reaches the goal."""
        tasks = self._list_tasks()
        failures: Counter[int] = Counter()
        while tasks:
            again = []
            for task, result in self.train(tasks):
                if isinstance(result, LineageRow):
                    self._add_row(result)
                    if self._is_goal_reached():
                        return
                    continue
                failures[task.member] += 1
                if result.is_final or failures[task.member] > self.config.max_restarts:
                    self.log(f"member {task.member}: {result.message}: it will be replaced by a copy of a better one")
                    self._add_row(task)
                else:
                    self.log(f"member {task.member}: {result.message}: it continues from its last checkpoint")
                    again.append(task)
            tasks = again
        if all(row.mean_return is None for row in self._list_rows()):
            raise MemberFailed("all members of the population have failed; the lines above contain the reasons")

    def _add_row(self, row: LineageRow) -> None:
        """Add the end of an interval to the lineage, which is ordered; the plan of a member that has failed."""
        if row.mean_return is not None and not math.isfinite(row.mean_return):
            row = replace(row, mean_return=None)
        self.lineage.append(row)
        self.lineage.sort(key=lambda row: (row.interval, row.member))  # not by the speed of processes
        self.folder.write_lineage(self.lineage)

    def _exchange(self, rows: Sequence[LineageRow]) -> None:
        """Plan the next interval, write the plan, and change the checkpoints accordingly."""
        self.state = self.exchange.plan(rows, np.random.default_rng([self.settings.base.seed, self.state.interval]))
        for line in describe_exchange(rows, self.state.members):
            self.log(line)
        self.folder.write_state(self.state)
        self._transfer()

    def _transfer(self) -> None:
        """Change the checkpoints as the plan of the current interval requires; a repetition makes the same changes."""
        self.transfer(self.state)
        self.state = replace(self.state, is_transferred=True)
        self.folder.write_state(self.state)


def describe_exchange(rows: Sequence[LineageRow], plans: Sequence[MemberPlan]) -> Iterator[str]:
    """Yield a line on the returns of an interval, and a line for each copy."""
    ranked = [rows[member] for member in rank_members([row.mean_return for row in rows])]
    returns = [f"{row.member}: {'failed' if row.mean_return is None else f'{row.mean_return:.4g}'}" for row in ranked]
    steps = max(row.env_steps for row in rows)
    yield f"interval {rows[0].interval}, {steps:,} env steps: returns {', '.join(returns)}"
    for row, plan in zip(rows, plans, strict=True):
        if plan.parent != row.member:
            settings = ", ".join(f"{path}={value}" for path, value in plan.settings.items()) or "same settings"
            yield f"member {row.member} copies member {plan.parent}: {settings}"
