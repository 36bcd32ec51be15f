"""A population of runs: its members train for an interval, are evaluated, and exchange weights and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from algorithm.population.evolution import rank_members
from algorithm.population.exchange import Exchange, ExchangePlan
from algorithm.population.lineage import LineageRow, MemberPlan, PopulationRecord, PopulationState


@dataclass(frozen=True, kw_only=True)
class MemberTask:
    """A request to train one member until the end of an interval, from the newest checkpoint in its run folder.

    Attributes:
        member: number of the member, from 1.
        plan: its settings.
        pause_at: env steps of the run at which the interval ends.
    """

    member: int
    plan: MemberPlan
    pause_at: int


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """The end of a task.

    Attributes:
        member: number of the member.
        env_steps: env steps of the run.
        mean_return: mean return of its evaluation.
        goal_reached: whether the goal was reached and confirmed.
        goal: mean return that was the goal; None without one.
    """

    member: int
    env_steps: int
    mean_return: float
    goal_reached: bool
    goal: float | None = None


class MemberFailed(Exception):
    """A member could not be trained until the end of an interval.

    Args:
        message: what happened, in one line.
        is_final: whether another attempt would fail in the same way.
    """

    def __init__(self, message: str, is_final: bool = False):
        super().__init__(message, is_final)
        self.message, self.is_final = message, is_final

    def __str__(self) -> str:
        return self.message


class MemberRunner(Protocol):
    """A place where members train: processes of this machine, or of a cluster.

    Everything that a task needs is in the run folder of the member, so that any process can train any member.
    """

    def train(self, tasks: Sequence[MemberTask]) -> Iterator[tuple[MemberTask, MemberReport | MemberFailed]]:
        """Yield each task with its result, as soon as it has ended. Tasks that are left when it is closed are stopped.

        Raises:
            UserError: a setting does not fit the members.
        """

    def close(self) -> None:
        """Stop all members; those that train save a checkpoint first."""


class Population:
    """A population, which alternates between training and exchanges until its members end.

    All members train for the same interval before any is compared. So the result does not depend on the speed of
    processes, and a population that was interrupted continues with the exchanges of one that was not.

    Args:
        record: the files of the population.
        runner: trains members.
        exchange: plans the next interval.
        transfer: changes the checkpoints of members as a plan requires, given the number of the next interval.
        interval: env steps of an interval.
        is_over: returns whether a member has ended, by its limits or by its goal, after the interval of a row.
        max_restarts: number of further attempts for a member that fails in an interval.
        seed: seed of the exchanges.
        log: receives lines for the user.
    """

    def __init__(
        self,
        *,
        record: PopulationRecord,
        runner: MemberRunner,
        exchange: Exchange,
        transfer: Callable[[ExchangePlan, int], None],
        interval: int,
        is_over: Callable[[LineageRow], bool],
        max_restarts: int,
        seed: int,
        log: Callable[[str], None],
    ):
        self.record, self.runner, self.exchange, self.transfer = record, runner, exchange, transfer
        self.interval, self.is_over = interval, is_over
        self.max_restarts, self.seed, self.log = max_restarts, seed, log
        self.state = record.read_state()
        self.lineage = [row for row in record.read_lineage(log) if not self._continues(row)]
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
            if self._is_goal_reached() or all(row.mean_return is None or self.is_over(row) for row in rows):
                return
            self._exchange(rows)

    def _continues(self, row: LineageRow) -> bool:
        """Return whether a member has to continue an interval that it had ended before the population was resumed.

        It had ended the interval at a limit or a goal of the run, which has changed.
        """
        is_last = row.interval == self.state.interval
        return is_last and row.env_steps < self.state.interval * self.interval and not self.is_over(row)

    def _is_goal_reached(self) -> bool:
        return any(row.goal_reached and self.is_over(row) for row in self._list_rows())

    def _list_rows(self) -> list[LineageRow]:
        """Return the rows of the current interval, by member."""
        return [row for row in self.lineage if row.interval == self.state.interval]

    def _train_interval(self) -> None:
        """Train all members that have not ended the current interval, until one reaches the goal."""
        done = {row.member for row in self._list_rows()}
        tasks = [
            MemberTask(member=member, plan=plan, pause_at=self.state.interval * self.interval)
            for member, plan in enumerate(self.state.members, 1)
            if member not in done
        ]
        failures: dict[int, int] = {}
        while tasks:
            again = []
            for task, result in self.runner.train(tasks):
                if isinstance(result, MemberReport):
                    self._add_row(task, result)
                    if self._is_goal_reached():
                        return
                    continue
                failures[task.member] = count = failures.get(task.member, 0) + 1
                if result.is_final or count > self.max_restarts:
                    self.log(f"member {task.member}: {result.message}: it will be replaced by a copy of a better one")
                    self._add_row(task, None)
                else:
                    self.log(f"member {task.member}: {result.message}: it continues from its last checkpoint")
                    again.append(task)
            tasks = again
        if all(row.mean_return is None for row in self._list_rows()):
            raise MemberFailed("all members of the population have failed; the lines above contain the reasons")

    def _add_row(self, task: MemberTask, report: MemberReport | None) -> None:
        """Add the end of an interval to the lineage, which is ordered; None: the member has failed."""
        failed = report is None or not math.isfinite(report.mean_return)
        self.lineage.append(
            LineageRow(
                interval=self.state.interval,
                member=task.member,
                parent=task.plan.parent,
                env_steps=report.env_steps if report else task.pause_at,
                settings=task.plan.settings,
                mean_return=None if failed or report is None else report.mean_return,
                goal_reached=report is not None and report.goal_reached,
                goal=report.goal if report else None,
            )
        )
        self.lineage.sort(key=lambda row: (row.interval, row.member))  # not by the speed of processes
        self.record.write_lineage(self.lineage)

    def _exchange(self, rows: Sequence[LineageRow]) -> None:
        """Plan the next interval, write the plan, and change the checkpoints accordingly."""
        rng = np.random.default_rng([self.seed, self.state.interval])
        plan = self.exchange.plan(rows, rng)
        for line in describe_exchange(rows, plan):
            self.log(line)
        self.state = PopulationState(
            interval=self.state.interval + 1,
            members=plan.members,
            elites=plan.elites,
            is_transferred=False,
            exchange=self.exchange.state(),
        )
        self.record.write_state(self.state)
        self._transfer()

    def _transfer(self) -> None:
        """Change the checkpoints as the plan of the current interval requires; a repetition makes the same changes."""
        self.transfer(ExchangePlan(members=self.state.members, elites=self.state.elites), self.state.interval)
        self.state = replace(self.state, is_transferred=True)
        self.record.write_state(self.state)


def describe_exchange(rows: Sequence[LineageRow], plan: ExchangePlan) -> Iterator[str]:
    """Yield a line on the returns of an interval, and a line for each copy."""
    ranked = [rows[member] for member in rank_members([row.mean_return for row in rows])]
    returns = ", ".join(f"{row.member}: {_format_return(row.mean_return)}" for row in ranked)
    yield f"interval {rows[0].interval}, {max(row.env_steps for row in rows):,} env steps: returns {returns}"
    for row, member in zip(rows, plan.members, strict=True):
        if member.parent != row.member:
            yield f"member {row.member} copies member {member.parent}: {_format_settings(member)}"


def _format_return(mean_return: float | None) -> str:
    return "failed" if mean_return is None else f"{mean_return:.4g}"


def _format_settings(plan: MemberPlan) -> str:
    return ", ".join(f"{path}={value}" for path, value in plan.settings.items()) or "same settings"


def find_best(rows: Sequence[LineageRow]) -> LineageRow | None:
    """Return the row that reached the goal, or else the row with the highest return; of equal ones the last."""
    evaluated = [row for row in rows if row.mean_return is not None]
    return max(evaluated, key=lambda row: (bool(row.goal_reached), row.mean_return, row.interval), default=None)
