"""The training of one member of a population until the end of an interval, and the service that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree, load_defaults, merge, nest
from algorithm.errors import UserError, is_stop, summarize_error
from algorithm.parts.lock import check_links
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import find_user_error
from algorithm.population.member_files import MemberFiles
from algorithm.population.rounds import MemberFailed, MemberReport, MemberTask
from algorithm.runs.callbacks import RunResult
from algorithm.training.signals import raise_on_stop_signals

SOURCE = "the settings of the member"
LOG_FILE = "log.txt"
# A function of (environment, folder, settings, variant, callbacks, log, pause_at) that trains until these env steps.
RunTraining = Callable[..., RunResult]


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of a population, for any process that trains one.

    Attributes:
        environment: name or path of the environment folder.
        variant: variant of its config.yaml; None if it is not known.
        folders: run folder of each member.
        tree: settings of the population.
        train: trains in a run folder.
    """

    environment: str
    variant: str | None
    folders: tuple[Path, ...]
    tree: Tree
    train: RunTraining

    def run_task(self, task: MemberTask) -> MemberReport:
        """Train a member until the end of an interval, from its newest checkpoint.

        Raises:
            Exception: those of `algorithm.runs.build.train`.
        """
        folder = RunFolder(self.folders[task.member - 1])
        check_links(folder.given_path)
        settings = folder.load_settings((SOURCE, make_member_tree(self.tree, task.member, task.plan.settings)))
        with folder.lock, (folder.path / LOG_FILE).open("a", encoding="utf-8") as file:

            def log(line: str) -> None:
                print(line, file=file, flush=True)

            result = self.train(self.environment, folder, settings, self.variant, [], log, task.pause_at)
        return _make_report(task, settings, result)


@dataclass(frozen=True, kw_only=True)
class MemberReply:
    """A reply of a service that trains members.

    Attributes:
        files: the files that have changed since the last reply; None without any, or if the machine is the same.
        result: the end of the task; None while the member trains.
    """

    files: MemberFiles | None = None
    result: MemberReport | MemberFailed | UserError | None = None


class MemberService:
    """A process of the machine with the run folders, which trains one member after another.

    Args:
        members: the members.
        numbers: the numbers of the service, which are not used.
    """

    def __init__(self, members: Members, *numbers: int):
        self.members = members

    def open(self) -> None:
        """Do nothing: the reply states that the process has started."""

    def begin(self, task: MemberTask, files: None = None) -> MemberReply:
        """Train a member until the end of an interval, or until SIGTERM, after which a checkpoint is saved."""
        try:
            with raise_on_stop_signals():
                return MemberReply(result=self.members.run_task(task))
        except BaseException as error:  # of the environment, or of a user's network
            if is_stop(error):
                return MemberReply(result=MemberFailed("its process was stopped"))
            named = find_user_error(error)
            if isinstance(named, UserError):
                return MemberReply(result=UserError(str(named)))
            is_final = type(named).__name__ == "Diverged"
            return MemberReply(result=MemberFailed(summarize_error(named), is_final))

    def stop(self) -> MemberReply:
        """Do nothing: SIGTERM has stopped the member."""
        return MemberReply()


def make_member_tree(tree: Tree, member: int, values: Mapping[str, Any]) -> Tree:
    """Return the settings of a member, which is a run of its own: its seed follows from its number.

    On a cluster, the members have no rollout actors: each one trains as in one process.

    Args:
        tree: settings of the population.
        member: number of the member, from 1.
        values: values of the settings that differ between members, by path.
    """
    own = merge(tree, {"base_config": {"seed": tree["base_config"]["seed"] + member - 1}})
    own |= {section: load_defaults()[section] for section in ("population_config", "cluster_config")}
    if tree["base_config"]["runtime"].casefold() == "cluster":
        own = merge(own, {"base_config": {"runtime": "LOCAL"}})
    for path, value in values.items():
        own = merge(own, nest(path, value))
    return own


def _make_report(task: MemberTask, settings: Settings, result: RunResult) -> MemberReport:
    returns = list(result.returns.values())
    if result.evaluation is not None:
        returns = [played.mean for played in result.evaluation.values()]
    return MemberReport(
        member=task.member,
        env_steps=result.counters.env_steps,
        mean_return=fmean(returns),
        goal_reached=bool(result.goal_reached),
        goal=settings.goal.return_ if settings.goal else None,
    )
