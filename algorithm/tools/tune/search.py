"""A search for settings: its space, the number that compares trials, the trials, the best settings as a variant."""

from __future__ import annotations

import gc
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.checkpointing.checkpoint import CheckpointError
from algorithm.config.loader import Settings, check_effects, find_failure, resolve
from algorithm.config.search import SPACE, Choices, Dimension, NumberRange, iterate_dimensions, read_space
from algorithm.config.yaml_layers import (
    Layer,
    Tree,
    format_value,
    format_variant,
    make_tree,
    merge,
    nest,
    read_own_variant,
    read_variant,
    read_yaml,
    write_variant,
)
from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, RUNS, get_run_group, is_file_name
from algorithm.parts.run_folder import RunFolder, find_environment_folder, format_run_name
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.runs.faults import describe_end
from algorithm.runs.run_requests import RunRequest, complete_settings, create_run
from algorithm.tools.tune.study import Study, TrialRecord
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.metrics import format_number

MAX_FAILURES = 3  # failed trials after which a search ends, if no other trial has been trained before
SECTION = "tune"  # the section of the search itself, which the variant with the best settings does not repeat
EVALUATIONS = 10  # of a run, if base_config.evaluate_every is null
WARMUP = 0.3  # fraction of a run that is trained before its trial can be pruned
PENALTY = 2  # env steps of a run that does not reach the goal, as a multiple of max_step (PAR2)
NOT_OF_A_TRIAL = (EnvironmentStartError, CheckpointError, OSError)  # these end a search: every trial would fail
# Settings that trials share, with what to use instead: otherwise trials could not be compared.
FIXED = {
    "goal": "a search compares trials by the same goal",
    "tune": "it describes the search itself",
    "base_config.name": "the study has this name",
    "base_config.seed": "tune.seeds is the number of seeds of each trial",
    "base_config.max_step": "trials are compared at the same number of env steps",
    "base_config.max_iter": "trials are compared at the same number of env steps",
    "base_config.evaluate_every": "trials are compared at the same env steps",
    "base_config.evaluate_greedy": "trials are compared by the same evaluation",
}
Values = dict[str, Any]  # by the paths of settings
Log = Callable[[str], None]
Train = Callable[[RunFolder, Settings, Sequence[Callback]], RunResult]  # trains in a run folder that is locked


class SearchSpace:
    """The space of `tune.space`, on top of the settings that all trials share.

    Args:
        layers: the settings that all trials share, with the space.
        own: those of the settings that were written for this search, and so must have an effect; other dimensions
            without an effect are left out.

    Attributes:
        dimensions: the dimensions, choices first.

    Raises:
        UserError: the space is empty, or a dimension cannot be searched: a setting that is unknown or shared by all
            trials, a value that the setting does not allow, a setting without effect.
    """

    def __init__(self, layers: Sequence[Layer], own: Sequence[Layer]):
        self.layers = list(layers)
        self.dimensions: list[Dimension] = []
        all_dimensions = read_space(resolve(self.layers).tune.space, layers)
        spaces = [(tree.get("tune") or {}).get("space") or {} for _, tree in own]
        written = {path for space in spaces for path, _ in iterate_dimensions(space)}
        for dimension in all_dimensions:
            choices = [other for other in all_dimensions if isinstance(other, Choices) and other is not dimension]
            limits, failure = self._check_values(dimension, choices)
            if failure and dimension.path in written:
                raise UserError(f"{dimension.source}: {SPACE}: {dimension.path} {failure}")
            if not failure:
                self.dimensions.append(_convert_limits(dimension, limits))
        if not self.dimensions:
            raise UserError(f"{layers[0][0]}: {SPACE} is empty; name settings there, such as acer_config.learning_rate")

    def _check_values(self, dimension: Dimension, choices: Sequence[Choices]) -> tuple[list[Any], str | None]:
        """Return the values of a dimension as settings have them, and why one has no effect, to follow its path.

        A value has an effect if it has one with the settings as they are, or with a value of another choice.

        Raises:
            UserError: A value cannot be searched.
        """
        path, place = dimension.path, f"{dimension.source}: {SPACE}"
        if reason := FIXED.get(path) or FIXED.get(path.partition(".")[0]):
            raise UserError(f"{place}: {path} cannot be searched: {reason}")
        contexts = [{}, *(nest(other.path, value) for other in choices for value in other.values)]
        typed: list[Any] = []
        for value in dimension.values:
            errors: list[UserError] = []
            failures: list[str | None] = []
            for context in contexts:
                try:
                    settings = resolve([*self.layers, (place, merge(context, nest(path, value)))])
                except UserError as error:
                    errors.append(error)
                    continue
                failures.append(find_failure(settings, path))
                if failures[-1] is None:
                    found = find_value(settings, path)
                    typed.append(found if isinstance(found, int | float) else value)
                    break
            if not failures:
                text = str(errors[0]).removeprefix(f"{place}: ")
                raise UserError(f"{place}: {text}") from errors[0]
            if failures[-1] is not None:
                return typed, failures[0]
        return typed, None

    def sample(self, trial: Any) -> Values:
        """Return the values of a trial of Optuna, without settings that have no effect with the values before them."""
        values: Values = {}
        for dimension in self.dimensions:
            try:
                failure = find_failure(resolve([*self.layers, (SPACE, make_tree(values))]), dimension.path)
            except UserError:  # the values need others, which are sampled later
                failure = None
            if failure is None:
                values[dimension.path] = dimension.sample(trial)
        return values


def _convert_limits(dimension: Dimension, typed: Sequence[Any]) -> Dimension:
    """Return a dimension with limits of the type of its setting: a range of 0 to 1 may be one of numbers."""
    if not isinstance(dimension, NumberRange):
        return dimension
    low, high = typed if all(isinstance(limit, int) for limit in typed) else map(float, typed)
    return replace(dimension, low=low, high=high)


def find_value(settings: Settings, path: str) -> Any:
    """Return the value of a setting in the typed settings; None if it is not among them."""
    section, *keys = path.split(".")
    owner: Any = settings
    for key in (settings.find_field(section), *keys):
        owner = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
    return owner


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
                mean if self.objective.maximize else -mean, self.earlier + env_steps // self.objective.evaluate_every
            )
        self.pruned = env_steps < self.objective.max_step and self.trial.should_prune()
        return self.pruned


class Search:
    """A search for settings in an environment folder, whose study is new or continues.

    Args:
        request: the request; its name is the name of the study, which the variant names otherwise.
        save_as: the variant that receives the best settings; None for a name that follows from the variant.
        train: trains in a run folder.
        log: receives lines for the user.

    Attributes:
        folder: the study folder, as messages name it.
        save_as: the variant that receives the best settings.

    Raises:
        UserError: settings or the space cannot be used, the study has other settings, or the variant exists.
    """

    def __init__(self, request: RunRequest, save_as: str | None, train: Train, log: Log):
        self.request, self._train, self._log = request, train, log
        self._config = config = find_environment_folder(request.env) / CONFIG_FILE
        suffix = "" if request.variant == "default" else f"_{request.variant}"
        base, settings = complete_settings(request, log)
        self._settings, own_variant = settings, read_own_variant(config, request.variant)
        written = read_variant(config, "default") if request.variant == "default" else own_variant
        self._layers = [base, *request.layers]  # settings that all trials share; the first are those of the file
        self.space = SearchSpace(self._layers, [(base[0], written), *request.layers])
        self.objective = Objective(settings, base[0])
        name = format_run_name(request.name or f"tune{suffix}", time.time())
        self.save_as = save_as or f"tuned{suffix}"
        self._check_variant()
        self.folder = RUNS / get_run_group(request.env) / name
        if (self.folder / CONFIG_FILE).exists():
            raise UserError(f"{self.folder} is a run; -n gives the study another name")
        folder = self.folder.absolute()
        self.study = Study(folder, self.objective.maximize, settings.base.seed, self.objective.warmup, log)
        self.study.check_settings({"variant": request.variant, **settings.tree})

    def run(self, limit: int) -> None:
        """Train trials until the study has `limit` of them, over all processes.

        Raises:
            Exception: the error of the last trial, if `MAX_FAILURES` trials and no others have been trained; or an
                error that is not of a trial: the environment does not start, a file cannot be written.
        """
        errors: list[Exception | None] = []
        while True:
            with self.study.take_trial(limit) as trial:
                if trial is None:
                    return
                errors.append(self._run_trial(trial))
            if errors[-1] and len(errors) == MAX_FAILURES and all(errors):
                self._log(f"the search ends: its first {MAX_FAILURES} trials have failed")
                raise errors[-1]
            gc.collect()

    def _run_trial(self, trial: Any) -> Exception | None:
        """Train a trial and record its result; return the error of a trial that failed."""
        values = self.space.sample(trial)
        trial.set_user_attr("values", values)
        given = " ".join(f"{path}={format_value(value)}" for path, value in values.items())
        self._log(f"trial {trial.number}: {given}")
        value, reason, error = None, "", None
        try:
            value, reason = self._measure(trial, values)
        except NOT_OF_A_TRIAL:
            raise
        except Exception as failure:  # of these settings: it is a result of the search
            reason, error = " ".join(describe_end(failure)[1].split()), failure
        self.study.finish(trial, value, reason)
        self._remove_checkpoints()
        best = self._find_best(self.study.list_trials())
        result = reason if value is None else f"{format_number(value)} {self.objective.unit}"
        result += " (goal not reached)" if self.objective.is_goal_missed(value) else ""
        known = "" if best is None else f"; best: trial {best.number}, {format_number(best.value)}"
        self._log(f"trial {trial.number}: {result}{known}")
        return error

    def _measure(self, trial: Any, values: Values) -> tuple[float | None, str]:
        """Train the runs of a trial, each with its seed, and return the mean of their numbers, or why it was pruned.

        Raises UserError if the settings cannot be used together.
        """
        shared, numbers = self._settings, []
        for index in range(shared.tune.seeds):
            pruner = Pruner(trial, index * (self.objective.evaluations + 1), self.objective)
            result = self._train_seed(trial, values, shared.base.seed + index, pruner)
            if pruner.pruned and not result.goal_reached:
                return None, f"pruned at {result.counters.env_steps:,} env steps"
            numbers.append(self.objective.measure(result))
        return fmean(numbers), ""

    def _train_seed(self, trial: Any, values: Values, seed: int, pruner: Pruner) -> RunResult:
        """Train the run of a trial with a seed, in a run folder inside the trial's."""
        study = self.folder.name
        given = [*self._layers[1:], (f"trial {trial.number}", make_tree(values))]
        own = self.objective.make_run_settings(seed)
        own["tracker_config"] = {"group": self._settings.tracker.group or study}
        settings = resolve([self._layers[0], *given, ("tune", own)])
        check_effects(settings, given[-1:])
        name = f"{study}/{trial.number}/seed-{seed}"
        shutil.rmtree(
            self.study.get_folder(trial.number) / f"seed-{seed}", ignore_errors=True
        )  # of an interrupted trial
        with create_run(replace(self.request, replace=False), name, settings) as folder:
            return self._train(folder, replace(settings, command_line_layers=given), [pruner])

    def _find_best(self, trials: list[TrialRecord]) -> TrialRecord | None:
        """Return the best trial; None if none is complete."""
        return next(iter(self.study.rank(trials)), None)

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of all finished trials but the best, which would fill the disk."""
        trials = self.study.list_trials()  # once, since other processes finish trials meanwhile
        best = self._find_best(trials)
        for trial in trials:
            if trial.state != "running" and trial != best:
                for path in self.study.get_folder(trial.number).glob("*/checkpoints"):
                    shutil.rmtree(path, ignore_errors=True)

    def save_best(self) -> TrialRecord | None:
        """Write the best settings as a variant, unless trials are still running; return the best trial, if written.

        Raises:
            UserError: no trial is complete, or the file cannot be changed.
        """
        with self.study.lock:
            trials = self.study.list_trials()
            best = self._find_best(trials)
            running = sum(trial.state == "running" for trial in trials)
            if running:
                self._log(
                    f"{running} of {len(trials)} trials are not finished: the last process of the study writes the "
                    f"variant {self.save_as}"
                )
                return None
            if best is None:
                raise UserError(f"none of {len(trials)} trials of {self.folder} is complete: no variant is written")
            if self.objective.is_goal_missed(best.value):
                raise UserError(
                    f"none of {len(trials)} trials of {self.folder} reached the goal: no variant is written; set a "
                    "larger base_config.max_step, or tune.objective: return"
                )
            self._write(best, len(trials))
            return best

    def _write(self, best: TrialRecord, count: int) -> None:
        """Write a variant that trains as a trial did; log it if that is not possible."""
        parent: Tree = {} if self.request.variant == "default" else {"inherit": self.request.variant}
        tree = merge(parent, *(layer for _, layer in self.request.layers))
        tree.pop(SECTION, None)
        tree = merge(tree, make_tree(best.settings))
        result = f"{format_number(best.value)} {self.objective.unit}"
        comment = f"{result} in trial {best.number} of {count} of the study {self.folder.name} (tune)"
        try:
            if read_yaml(self._config).get(self.save_as) == tree:  # by a process that ended at the same time
                return
            self._check_variant()
            write_variant(self._config, self.save_as, tree, comment)
        except UserError:
            self._log(f"the best settings:\n{format_variant(self.save_as, tree, comment)}")
            raise
        self._log(f"wrote the variant {self.save_as} into {self._config}")

    def _check_variant(self) -> None:
        """Raise UserError if the variant for the best settings is no name, or exists and is not to be replaced."""
        if not is_file_name(self.save_as):
            raise UserError(f"--save-as {self.save_as!r}: use a plain name")
        if self.save_as in ("default", self.request.variant):
            raise UserError(
                f"--save-as {self.save_as}: the best settings are a variant of {self.save_as}; choose another name"
            )
        if self.save_as in read_yaml(self._config) and not self.request.replace:
            raise UserError(
                f"{self._config}: the variant {self.save_as!r} exists already; --force replaces it, --save-as gives "
                "the best settings another name"
            )
