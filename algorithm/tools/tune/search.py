"""A search for settings: the trials of a study one after the other, and its best settings as a variant."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.checkpointing.checkpoint import CheckpointError
from algorithm.config.loader import Settings, resolve
from algorithm.config.unused_settings import check_effects
from algorithm.config.variants import format_variant, read_own_variant, read_variant, write_variant
from algorithm.config.yaml_layers import Layer, Tree, format_value, merge, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, RUNS, get_run_group, is_file_name
from algorithm.parts.run_folder import RunFolder, find_environment_folder, format_run_name
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.runs.faults import describe_end
from algorithm.runs.run_requests import RunRequest, create_run, resolve_effective
from algorithm.tools.tune.objective import Objective, Pruner, make_objective
from algorithm.tools.tune.space import SearchSpace, Values, make_tree, open_space
from algorithm.tools.tune.study import OpenTrial, Study, TrialRecord
from algorithm.training.metrics import format_number

MAX_FAILURES = 3  # failed trials after which a search ends, if no other trial has been trained before
SECTION = "tune"  # the section of the search itself, which the variant with the best settings does not repeat
NOT_OF_A_TRIAL = (EnvironmentStartError, CheckpointError, OSError)  # these end a search: every trial would fail

Log = Callable[[str], None]
Train = Callable[[RunFolder, Settings, Sequence[Callback]], RunResult]  # trains in a run folder that is locked


class TrialPruned(Exception):
    """The end of a trial whose evaluations are worse than the median of other trials at the same env steps."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for settings that a command line has requested.

    Attributes:
        request: the request; its name is the name of the study.
        config: the config.yaml of the environment folder.
        layers: settings that all trials share; the first are those of the file.
        folder: the study folder, as messages name it.
        study: the study.
        space: the space.
        objective: the objective.
        train: trains in a run folder.
        save_as: the variant that receives the best settings.
    """

    request: RunRequest
    config: Path
    layers: Sequence[Layer]
    folder: Path
    study: Study
    space: SearchSpace
    objective: Objective
    train: Train
    save_as: str

    def run(self, limit: int, log: Log) -> None:
        """Train trials until the study has `limit` of them, over all processes.

        Raises:
            Exception: the error of the last trial, if `MAX_FAILURES` trials and no others have been trained; or an
                error that is not of a trial: the environment does not start, a file cannot be written.
        """
        errors: list[Exception | None] = []
        while (trial := self.study.take_trial(limit)) is not None:
            with trial.lock:
                error = self._run_trial(trial, log)
            errors.append(error)
            if error and len(errors) == MAX_FAILURES and all(errors):
                log(f"the search ends: its first {MAX_FAILURES} trials have failed")
                raise error
            gc.collect()

    def _run_trial(self, trial: OpenTrial, log: Log) -> Exception | None:
        """Train a trial and record its result; return the error of a trial that failed."""
        values = self.space.sample(trial.trial)
        trial.record_values(values)
        log(f"trial {trial.number}: {format_values(values)}")
        value, reason, error = None, "", None
        try:
            value = self._measure(trial, values)
        except TrialPruned as pruned:
            reason = str(pruned)
        except NOT_OF_A_TRIAL:
            raise
        except Exception as failure:  # of these settings: it is a result of the search
            reason, error = " ".join(describe_end(failure)[1].split()), failure
        self.study.finish(trial, value, reason)
        self._remove_checkpoints()
        best = self.study.find_best()
        result = reason if value is None else f"{format_number(value)} {self.objective.unit}"
        result += " (goal not reached)" if self.objective.is_goal_missed(value) else ""
        known = "" if best is None else f"; best: trial {best.number}, {format_number(best.value)}"
        log(f"trial {trial.number}: {result}{known}")
        return error

    def _measure(self, trial: OpenTrial, values: Values) -> float:
        """Train the runs of a trial, each with its seed, and return the mean of their numbers.

        Raises:
            TrialPruned: it was pruned.
            UserError: the settings cannot be used together.
        """
        shared, numbers = self.objective.settings, []
        for index in range(shared.tune.seeds):
            pruner = Pruner(trial.trial, index * (self.objective.evaluations + 1), self.objective)
            result = self._train_seed(trial, values, shared.base.seed + index, pruner)
            if pruner.pruned and not result.goal_reached:
                raise TrialPruned(f"pruned at {result.counters.env_steps:,} env steps")
            numbers.append(self.objective.measure(result))
        return fmean(numbers)

    def _train_seed(self, trial: OpenTrial, values: Values, seed: int, pruner: Pruner) -> RunResult:
        """Train the run of a trial with a seed, in a run folder inside the trial's."""
        study = self.folder.name
        given = [*self.layers[1:], (f"trial {trial.number}", make_tree(values))]
        own = self.objective.make_run_settings(seed)
        own["tracker_config"] = {"group": self.objective.settings.tracker.group or study}
        settings = resolve([self.layers[0], *given, ("tune", own)])
        check_effects(settings, given[-1:])
        name = f"{study}/{trial.number}/seed-{seed}"
        shutil.rmtree(trial.folder / f"seed-{seed}", ignore_errors=True)  # of an interrupted trial
        with create_run(replace(self.request, replace=False), name, settings) as folder:
            return self.train(folder, replace(settings, command_line_layers=given), [pruner])

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of all finished trials but the best, which would fill the disk."""
        trials = self.study.list_trials()  # once, since other processes finish trials meanwhile
        best = self.study.find_best(trials)
        for trial in trials:
            if trial.state != "running" and trial != best:
                for path in (self.study.folder / str(trial.number)).glob("*/checkpoints"):
                    shutil.rmtree(path, ignore_errors=True)

    def save_best(self, log: Log) -> TrialRecord | None:
        """Write the best settings as a variant, unless trials are still running; return the best trial, if written.

        Raises:
            UserError: no trial is complete, or the file cannot be changed.
        """
        with self.study.lock:
            trials = self.study.list_trials()
            best = self.study.find_best(trials)
            running = sum(trial.state == "running" for trial in trials)
            if running:
                log(
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
            self._write(best, len(trials), log)
            return best

    def _write(self, best: TrialRecord, count: int, log: Log) -> None:
        """Write the settings of a trial as a variant; log them if that is not possible."""
        tree = self._make_variant(best)
        result = f"{format_number(best.value)} {self.objective.unit}"
        comment = f"{result} in trial {best.number} of {count} of the study {self.folder.name} (tune)"
        try:
            if read_yaml(self.config).get(self.save_as) == tree:  # by a process that ended at the same time
                return
            check_variant(self.config, self.request, self.save_as)
            write_variant(self.config, self.save_as, tree, comment)
        except UserError:
            log(f"the best settings:\n{format_variant(self.save_as, tree, comment)}")
            raise
        log(f"wrote the variant {self.save_as} into {self.config}")

    def _make_variant(self, best: TrialRecord) -> Tree:
        """Return the settings of a variant that trains as a trial did: those of the command line and its own."""
        tree: Tree = {} if self.request.variant == "default" else {"inherit": self.request.variant}
        for _, layer in self.request.layers:
            tree = merge(tree, {key: value for key, value in layer.items() if key != SECTION})
        return merge(tree, make_tree(best.settings))


def open_search(request: RunRequest, save_as: str | None, train: Train, log: Log) -> Search:
    """Return a search in an environment folder, whose study is new or continues.

    Args:
        request: the request; without a name, the variant names the study.
        save_as: the variant that receives the best settings; None for a name that follows from the variant.
        train: trains in a run folder.
        log: receives a line if the study is damaged.

    Raises:
        UserError: settings or the space cannot be used, the study has other settings, or the variant exists.
    """
    config = find_environment_folder(request.env) / CONFIG_FILE
    suffix = "" if request.variant == "default" else f"_{request.variant}"
    base = (str(config), read_variant(config, request.variant))
    settings = resolve_effective(base, read_own_variant(config, request.variant), request.layers)
    own = base if request.variant == "default" else (base[0], read_own_variant(config, request.variant))
    layers = [base, *request.layers]
    space = open_space(layers, [own, *request.layers])
    objective = make_objective(settings, base[0])
    name = format_run_name(request.name or f"tune{suffix}", time.time())
    save_as = save_as or f"tuned{suffix}"
    check_variant(config, request, save_as)
    folder = RUNS / get_run_group(request.env) / name
    if (folder / CONFIG_FILE).exists():
        raise UserError(f"{folder} is a run; -n gives the study another name")
    study = Study(folder.absolute(), objective.maximize, settings.base.seed, objective.warmup, log)
    study.check_settings({"variant": request.variant, **settings.tree})
    return Search(
        request=request,
        config=config,
        layers=layers,
        folder=folder,
        study=study,
        space=space,
        objective=objective,
        train=train,
        save_as=save_as,
    )


def check_variant(config: Path, request: RunRequest, save_as: str) -> None:
    """Raise UserError if the variant for the best settings is no name, or exists and is not to be replaced."""
    if not is_file_name(save_as):
        raise UserError(f"--save-as {save_as!r}: use a plain name")
    if save_as in ("default", request.variant):
        raise UserError(f"--save-as {save_as}: the best settings are a variant of {save_as}; choose another name")
    if save_as in read_yaml(config) and not request.replace:
        raise UserError(
            f"{config}: the variant {save_as!r} exists already; --force replaces it, --save-as gives the best settings "
            "another name"
        )


def format_values(values: Mapping[str, Any]) -> str:
    """Return the settings of a trial in one line, as --set takes them."""
    return " ".join(f"{path}={format_value(value)}" for path, value in values.items())
