"""Reports of a run: rows of metrics, histograms, lines of text, and its progress for a display."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import LossResult
from algorithm.program import metric_suffix, role_suffix
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.metrics import MetricsWriter
from algorithm.training.progress import EvaluatedMean, History, Limits, Progress, RoleProgress, Snapshot

SAMPLE_INTERVAL = 16  # updates of which the metrics of one are computed
DISPLAYED_UPDATES = 10  # updates with metrics whose mean is displayed
MIN_SECONDS = 1.0  # seconds after a row before the throughput since then is displayed
DISPLAYED_METRICS = {  # the displayed metrics of a policy, and their displayed names
    "train/entropy": "entropy",
    "train/entropy_discrete": "discrete entropy",
    "train/entropy_continuous": "continuous entropy",
    "train/alpha_discrete": "discrete temperature",
    "train/alpha_continuous": "continuous temperature",
    "train/kl_to_average": "KL to average",
}
LOSS_SUFFIX = "_loss"  # every metric with this ending is displayed


@dataclass(eq=False)
class Reporter:
    """A reporter of one run.

    Args:
        history: the counters and the recent episodes.
        limits: the limits and the goal of the run.
        metrics: writes the rows of metrics.
        log: receives lines for the user.
        on_progress: receives the progress of the run, for a display.
        histograms: the kinds of histograms that are written with each row: actions, weights.
        count_faults: returns the number of faults so far.
        collect_metrics: returns the metrics of the runtime since the last row, by name.

    Attributes:
        rows: the number of rows that were written.
    """

    history: History
    limits: Limits
    metrics: MetricsWriter
    log: Callable[[str], None]
    on_progress: Callable[[Progress], object]
    histograms: Collection[str] = ()
    count_faults: Callable[[], int] = int
    collect_metrics: Callable[[], Mapping[str, float]] = dict

    def __post_init__(self) -> None:
        self.training, self.timer = self.history.training, self.history.training.timer
        self._sampled: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # metrics of updates since the last row
        self._actions: dict[str, np.ndarray] = {}  # by role: raw actions of the last rollout, for histograms
        self._latest_metrics: dict[str, dict[str, float]] = {}  # by role: mean metrics of the last updates
        self._evaluation: EvaluatedMean | None = None
        self._best_evaluation: EvaluatedMean | None = None
        for env_steps, mean in self.metrics.earlier_evaluations.items():
            self._record_evaluation(env_steps, mean)
        self.rows = 0
        self._start = self._last_row = self._take_snapshot()
        self._throughput = self._start.compute_throughput(self._start)

    def record_update(self, role: str, result: LossResult) -> None:
        """Keep the metrics of one in `SAMPLE_INTERVAL` updates, and of the first of each row."""
        if is_sampled(bool(self._sampled[role]), self.history.counters.updates):
            self._sampled[role].append(result.compute_metrics())
            if "actions" in self.histograms and result.raw_action is not None:
                self._actions[role] = result.raw_action

    def add_samples(self, role: str, samples: Sequence[Mapping[str, float]]) -> None:
        """Keep the metrics of updates that another process has sampled by `is_sampled`."""
        for metrics in samples:
            self._sampled[role].append({name: torch.tensor(value) for name, value in metrics.items()})

    def log_metrics(self) -> None:
        """Write a row of metrics, unless there was no env step since the last row."""
        now = self._take_snapshot()
        if now.counters.env_steps > self._last_row.counters.env_steps:
            self.history.update_seconds(with_cpu=True)
            self._throughput = now.compute_throughput(self._last_row)
            statistics = {f"scene/{name}": value for name, value in self.training.adapter.statistics().items()}
            cpu_seconds = self.history.counters.cpu_seconds
            values = {
                "time/seconds": now.counters.seconds,
                **({} if cpu_seconds is None else {"time/cpu_seconds": cpu_seconds}),
                "time/env_steps_per_second": self._throughput.env_steps,
                "time/updates_per_second": self._throughput.updates,
                "time/episodes": now.counters.episodes,
                "time/updates": now.counters.updates,
                **{f"time/{phase}_fraction": share for phase, share in self._throughput.shares.items()},
                **self._collect_metrics(),
                **statistics,
                **self.collect_metrics(),
            }
            self.metrics.write(now.counters.env_steps, values)
            if self.histograms and self.metrics.trackers:
                self.metrics.trackers.log_histograms(now.counters.env_steps, self._collect_histograms())
            progress = self._make_progress(now, wrote_row=True)
            self._sampled.clear()
            self.rows += 1
            self._last_row = now
            self.on_progress(progress)
        self.timer.lap("reporting")

    def show_progress(self) -> None:
        """Pass the current progress to the display."""
        now = self._take_snapshot()
        if self._last_row is self._start or now.running_seconds - self._last_row.running_seconds > MIN_SECONDS:
            self._throughput = now.compute_throughput(self._last_row)
        self.on_progress(self._make_progress(now))
        self.timer.lap("reporting")

    def report_evaluation(self, env_steps: int, evaluation: Mapping[str, EvaluationResult]) -> None:
        """Write a row with the results of an evaluation that has started at `env_steps`, and log a line for each.

        A run that is resumed at its end repeats its last evaluation, of which there is a row.
        """
        values: dict[str, float] = {}
        for role, result in evaluation.items():
            low, high = result.interval
            measured = {
                "eval/return": result.mean,
                "eval/return_low": low,
                "eval/return_high": high,
                "eval/return_std": result.std,
                "eval/length": result.length,
            }
            values |= {f"{name}{metric_suffix(role)}": value for name, value in measured.items()}
            self.log(f"evaluation{role_suffix(role)} at {env_steps:,} env steps: {result}")
        self._record_evaluation(env_steps, fmean(result.mean for result in evaluation.values()))
        if env_steps not in self.metrics.earlier_evaluations:
            self.metrics.write(env_steps, values)
        self.timer.lap("reporting")

    def report_confirmation(self, env_steps: int, results: Mapping[str, EvaluationResult], is_confirmed: bool) -> None:
        """Log whether episodes that are not reported, with weights of `env_steps`, have confirmed the goal."""
        outcome = "confirmed" if is_confirmed else "not confirmed"
        for role, result in results.items():
            self.log(f"goal{role_suffix(role)} {outcome} at {env_steps:,} env steps: {result}")

    def report_evaluation_error(self, env_steps: int, error: Exception) -> None:
        """Log that an evaluation that was due at `env_steps` is not possible, and why."""
        instead = "" if self.limits.goal is None else "; training episodes alone confirm the goal"
        reason = " ".join(str(error).split())
        self.log(
            f"evaluation at {env_steps:,} env steps is not possible: {reason}; "
            f"training continues without evaluation{instead}"
        )

    def close(self) -> None:
        """Write the last row, and show the final progress with the throughput of the whole process."""
        self.log_metrics()
        now = self._take_snapshot()
        self._throughput = now.compute_throughput(self._start)
        self.on_progress(self._make_progress(now, has_ended=True))

    def _record_evaluation(self, env_steps: int, mean: float) -> None:
        """Keep an evaluation as the last one, and as the best one if no earlier one is better."""
        self._evaluation = EvaluatedMean(env_steps=env_steps, mean=mean)
        if self._best_evaluation is None or mean >= self._best_evaluation.mean:
            self._best_evaluation = self._evaluation

    def _take_snapshot(self) -> Snapshot:
        self.history.update_seconds()
        return Snapshot(replace(self.history.counters), dict(self.timer.seconds))

    def _collect_metrics(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, recent in self.history.collect_recent().items():
            if recent.returns:
                suffix = metric_suffix(name)
                values |= {f"rollout/return{suffix}": recent.mean, f"rollout/length{suffix}": recent.length}
                values[f"rollout/episode_return{suffix}"] = recent.returns[-1]
        for role, components in self.training.by_role.items():
            for name, value in _mean_metrics(self._sampled[role]).items():
                values[f"{name}{metric_suffix(role)}"] = value
            values[f"train/skipped_updates{metric_suffix(role)}"] = components.learner.skipped_updates
        return values

    def _collect_histograms(self) -> dict[str, np.ndarray]:
        """Return the executed actions, by dimension or branch, and the parameters of each layer; finite values only."""
        arrays: dict[str, np.ndarray] = {}
        for role, components in self.training.by_role.items():
            agent, suffix = components.agent, metric_suffix(role)
            if role in self._actions:
                raw_action = self._actions.pop(role)  # [T, B, size]
                actions = agent.family.to_action(raw_action.reshape(-1, raw_action.shape[-1]))
                arrays |= {f"actions/{number}{suffix}": values for number, values in enumerate(actions.T)}
            if "weights" in self.histograms:
                arrays |= {
                    f"weights/{name}/{parameter}{suffix}": values.detach().cpu().numpy().ravel()
                    for name, group in agent.groups.items()
                    for parameter, values in group.module.named_parameters()
                }
        finite = {name: array[np.isfinite(array)] for name, array in arrays.items()}
        return {name: array for name, array in finite.items() if len(array)}

    def _make_progress(self, now: Snapshot, wrote_row: bool = False, has_ended: bool = False) -> Progress:
        limits, counters = self.limits, now.counters
        fraction_done = limits.fraction_done(counters)
        return Progress(
            wrote_row=wrote_row,
            has_ended=has_ended,
            counters=counters,
            max_step=limits.max_step,
            goal=limits.goal,
            fraction_done=fraction_done,
            seconds_left=None if has_ended else self._estimate_seconds_left(now.running_seconds, fraction_done),
            throughput=self._throughput,
            device=", ".join({str(components.learner.device): None for components in self.training.by_role.values()}),
            faults=self.count_faults(),
            roles=self._make_roles(),
            evaluation=None if self.training.has_teams else self._evaluation,
            best_evaluation=None if self.training.has_teams else self._best_evaluation,
        )

    def _make_roles(self) -> dict[str, RoleProgress]:
        """Return the progress of each role or team; of several teams of a role, the first has its metrics."""
        roles = {}
        for role, teams in self.training.lanes_by_team.items():
            if sampled := self._sampled[role]:
                self._latest_metrics[role] = _mean_metrics(sampled[-DISPLAYED_UPDATES:])
            latest = self._latest_metrics.get(role, {})
            policy_metrics = {
                DISPLAYED_METRICS[name]: value for name, value in latest.items() if name in DISPLAYED_METRICS
            }
            losses = {
                name.removeprefix("train/").removesuffix(LOSS_SUFFIX): value
                for name, value in latest.items()
                if name.endswith(LOSS_SUFFIX)
            }
            for team, lanes in teams.items():
                recent = self.history.recent[team]
                roles[team] = RoleProgress(
                    mean=recent.mean,
                    first=recent.first,
                    best=recent.best,
                    length=recent.length,
                    lanes=lanes,
                    policy_metrics=policy_metrics,
                    losses=losses,
                )
                policy_metrics, losses = {}, {}
        return roles

    def _estimate_seconds_left(self, running_seconds: float, fraction_done: float | None) -> float | None:
        start_fraction = self.limits.fraction_done(self._start.counters)
        if fraction_done is None or start_fraction is None or fraction_done <= start_fraction:
            return None
        seconds_per_fraction = (running_seconds - self._start.running_seconds) / (fraction_done - start_fraction)
        return max(0.0, (1 - fraction_done) * seconds_per_fraction)


def is_sampled(has_samples: bool, updates: int) -> bool:
    """Return whether metrics of update number `updates` are computed; `has_samples`: some were since the last row."""
    return not has_samples or updates % SAMPLE_INTERVAL == 0


def _mean_metrics(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the mean of each metric over those of `updates` that have it."""
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    return {
        name: torch.stack([metrics[name] for metrics in updates if name in metrics]).mean().item() for name in names
    }
