"""The training of one member of a population, until the end of an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree, load_defaults, merge, nest
from algorithm.parts.lock import check_links
from algorithm.parts.run_folder import RunFolder
from algorithm.population.rounds import MemberReport, MemberTask
from algorithm.runs.callbacks import RunResult

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
