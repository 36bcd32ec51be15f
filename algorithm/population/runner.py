"""Populations: new ones, existing ones, and their intervals, after which members exchange weights and settings."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.config.loader import Settings, check_effects, resolve
from algorithm.config.yaml_layers import format_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS, check_format, check_origin, get_run_group, write_origin
from algorithm.parts.lock import check_links
from algorithm.parts.make_env import check_several_runs
from algorithm.parts.run_folder import RunFolder, find_environment_folder, list_changes
from algorithm.population.exchange import DrawWeights, Log, plan_copies, rank_members, transfer_checkpoints
from algorithm.population.member_fleet import MemberFleet
from algorithm.population.members import (
    MemberFailed,
    MemberPlan,
    Members,
    PopulationFolder,
    PopulationState,
    RunTraining,
    make_member_tree,
)
from algorithm.population.setting_spaces import make_spaces
from algorithm.runs.lineage import LineageRow
from algorithm.runs.run_requests import RunRequest

SETTINGS_FILE = "population.yaml"  # the settings of a population, in its folder
START = 0  # number of the interval before the first, for seeds
# A function that returns the start of the next interval, given the rows of all members of this one, and a generator.
Plan = Callable[[Sequence[LineageRow], np.random.Generator], PopulationState]


@contextmanager
def create_population(request: RunRequest, name: str, settings: Settings) -> Iterator[PopulationFolder]:
    """Make the folders of a new population and of its members, and hold the lock of the population within the block.

    A block that ends before a member has learned removes all of them.

    Raises:
        UserError: a name is taken, or a setting is not for a population.
    """
    folder, spaces = _locate(request, name, settings), make_spaces(settings)
    for member in folder.members:
        RunFolder.check_name_free(request.env, member.path.name)
    rng = np.random.default_rng([settings.base.seed, START])
    plans = [MemberPlan(parent=k, settings=spaces.sample(rng)) for k in range(1, folder.size + 1)]
    folder.path.mkdir(parents=True)
    try:
        with folder.lock:
            write_origin(folder.path, request.env)
            source = find_environment_folder(request.env) if request.has_folder else None
            for k, (member, plan) in enumerate(zip(folder.members, plans, strict=True), 1):
                tree = resolve([(SETTINGS_FILE, make_member_tree(settings.tree, k, plan.settings))]).tree
                RunFolder.create(request.env, source, member.path.name, tree)
            replace_text(folder.path / SETTINGS_FILE, format_yaml(settings.tree))
            folder.write_state(PopulationState(interval=1, members=plans))
            yield folder
    finally:
        if not folder.has_learned():
            shutil.rmtree(folder.path)
            for member in folder.members:
                if member.path.exists():
                    member.remove()


@contextmanager
def resume_population(request: RunRequest, name: str, log: Log) -> Iterator[tuple[PopulationFolder, Settings]]:
    """Yield the population to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible.
    """
    path = RUNS / get_run_group(request.env) / name
    check_origin(path, request.env)
    check_format(path)
    given = list(request.layers)
    recorded = read_yaml(path / SETTINGS_FILE)
    settings = replace(resolve([(str(path / SETTINGS_FILE), recorded), *given]), command_line_layers=given)
    check_effects(settings, given)
    folder = _locate(request, name, settings)
    with folder.lock:
        for each in (path, *(member.path for member in folder.members if member.path.is_dir())):
            check_links(each)
        for line in list_changes(recorded, settings):
            log(line)
        replace_text(path / SETTINGS_FILE, format_yaml(settings.tree))
        yield folder, settings


def _locate(request: RunRequest, name: str, settings: Settings) -> PopulationFolder:
    """Return the folder of a population. Raises UserError if the population cannot be trained."""
    if request.repeat is not None:
        raise UserError("--repeat is for single runs: a population trains its members with consecutive seeds")
    if request.replace:
        raise UserError("--force is for single runs: give the population another name with -n")
    if request.use_env_nn:
        raise UserError("--use-env-nn is for single runs: the members of a population keep their copies of nn.py")
    if settings.base.max_iter is not None:
        raise UserError("base_config.max_iter is not for a population, whose intervals are env steps: use max_step")
    check_several_runs(settings.base, "a population", "train a single run")
    assert settings.population.size is not None
    return PopulationFolder(RUNS / get_run_group(request.env) / name, settings.population.size)


class Population:
    """A population, which alternates between training and exchanges until its members end.

    All members train for the same interval before any is compared. So the result does not depend on the speed of
    processes, and a population that was interrupted continues with the exchanges of one that was not. `train` trains
    members, as `MemberFleet.train`.
    """

    def __init__(
        self,
        folder: PopulationFolder,
        settings: Settings,
        plan: Plan,
        train: Callable[[Sequence[LineageRow]], Iterator[tuple[LineageRow, LineageRow | MemberFailed]]],
        log: Log,
    ):
        self.folder, self.settings, self.config = folder, settings, settings.population
        self.plan, self.train, self.log = plan, train, log
        self.state = folder.read_state()
        self.lineage = [row for row in folder.read_lineage(log) if not self._continues(row)]
        if all(row.mean_return is None for row in self._list_rows()):  # their common cause may be repaired
            self.lineage = [row for row in self.lineage if row.interval < self.state.interval]

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
        failures: Counter[int] = Counter()
        while tasks := self._list_tasks():
            for task, result in self.train(tasks):
                if isinstance(result, LineageRow):
                    self._add_row(result)
                    if self._is_goal_reached():
                        return
                    continue
                failures[task.member] += 1
                if result.is_final or failures[task.member] > self.config.max_restarts:
                    self.log(f"member {task.member}: {result}: it will be replaced by a copy of a better one")
                    self._add_row(task)
                else:
                    self.log(f"member {task.member}: {result}: it continues from its last checkpoint")
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
        self.state = self.plan(rows, np.random.default_rng([self.settings.base.seed, self.state.interval]))
        for line in describe_exchange(rows, self.state.members):
            self.log(line)
        self.folder.write_state(self.state)
        self._transfer()

    def _transfer(self) -> None:
        """Change the checkpoints as the plan of the current interval requires; a repetition makes the same changes."""
        transfer_checkpoints(self.folder, self.settings.base, self.log, self.state)
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


def train_population(
    folder: PopulationFolder, settings: Settings, train: RunTraining, log: Log
) -> Sequence[LineageRow]:
    """Train a population until it ends, from what is in its folder, which the caller has locked. Return the lineage.

    `train` trains in a run folder; it is `algorithm.api.run_training` of its environment.

    Raises:
        MemberFailed: all members have failed in an interval.
        UserError: a setting does not fit the members.
    """
    folders = tuple(member.path for member in folder.members)
    members = Members(folders=folders, tree=settings.tree, train=train)
    spaces, config = make_spaces(settings), settings.population
    plan: Plan = partial(plan_copies, spaces, config)
    if config.evolver_enabled:
        plan = DrawWeights(spaces, config, folder.read_state().exchange).plan
    with closing(MemberFleet(members, settings, log)) as fleet:
        population = Population(folder, settings, plan, fleet.train, log)
        population.run()
    return population.lineage
