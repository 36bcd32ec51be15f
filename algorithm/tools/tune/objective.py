"""The number by which the trials of a search are compared."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import ceil
from statistics import fmean
from typing import Any

from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree
from algorithm.errors import UserError
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.training.evaluator import EvaluationResult

EVALUATIONS = 10  # of a run, if base_config.evaluate_every is null
WARMUP = 0.3  # fraction of a run that is trained before its trial can be pruned
PENALTY = 2  # env steps of a run that does not reach the goal, as a multiple of max_step (PAR2)


class Objective:
    """The number by which trials are compared.

    Args:
        settings: settings that all trials share.
        source: name of the file of the settings, for messages.

    Attributes:
        maximize: whether larger numbers are better.
        unit: the name of the number.
        max_step: the env steps at which a run ends.
        evaluate_every: the env steps between the evaluations of a run.
        evaluations: the number of evaluations of a run.
        warmup: the number of the first evaluation at which a trial can be pruned.

    Raises:
        UserError: the settings have no limit or no goal.
    """

    def __init__(self, settings: Settings, source: str):
        if settings.base.max_step is None:
            raise UserError(f"{source}: tune needs base_config.max_step, the length of the run of each trial")
        self.maximize = settings.tune.objective == "return"
        if not self.maximize and (settings.goal is None or settings.goal.return_ is None):
            raise UserError(
                f"{source}: tune.objective: env_steps needs goal.return, the return to reach; or use return"
            )
        self.unit = "mean return" if self.maximize else "env steps"
        self.max_step = settings.base.max_step
        self.evaluate_every = settings.base.evaluate_every or max(1, self.max_step // EVALUATIONS)
        self.evaluations = self.max_step // self.evaluate_every
        self.warmup = ceil(WARMUP * self.evaluations)

    def measure(self, result: RunResult) -> float:
        """Return the number of a run that has ended. Raises UserError if the run could not be evaluated."""
        if not self.maximize:
            return result.counters.env_steps if result.goal_reached else PENALTY * self.max_step
        if result.evaluation is None:
            raise UserError("tune.objective return needs evaluation, which is not possible in this environment")
        return compute_mean_return(result.evaluation)

    def is_goal_missed(self, value: float | None) -> bool:
        """Return whether no run of a trial with this number reached the goal that the number is about."""
        return not self.maximize and value is not None and value >= PENALTY * self.max_step

    def make_run_settings(self, seed: int) -> Tree:
        """Return the settings that a search sets in each of its runs."""
        base = {"seed": seed, "evaluate_every": self.evaluate_every, "save_every": None, "export": "never"}
        return {"base_config": base, **({"goal": None} if self.maximize else {})}


def compute_mean_return(results: Mapping[str, EvaluationResult]) -> float:
    """Return the mean return of an evaluation, over the roles."""
    return fmean(result.mean for result in results.values())


class Pruner(Callback):
    """A callback that stops a run whose evaluations are worse than the median of other trials.

    Args:
        trial: the trial of Optuna, or of a test.
        earlier: number of evaluations of the runs with earlier seeds.
        objective: the objective, for the direction of the comparison.

    Attributes:
        pruned: whether it has stopped the run.
    """

    def __init__(self, trial: Any, earlier: int, objective: Objective):
        self.trial, self.earlier, self.objective = trial, earlier, objective
        self.pruned = False

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> bool:
        mean = compute_mean_return(results)
        env_steps = max(result.env_steps for result in results.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an interrupted trial has reported this step before
            self.trial.report(
                mean if self.objective.maximize else -mean,
                self.earlier + env_steps // self.objective.evaluate_every,
            )
        self.pruned = env_steps < self.objective.max_step and self.trial.should_prune()
        return self.pruned
