from __future__ import annotations

import csv
from dataclasses import replace

import pytest
import torch

from algorithm.agents.agent import LossResult
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.invalid_values import Episode
from algorithm.training.metrics import MetricsWriter
from algorithm.training.progress import WINDOW, Counters, EvaluatedMean, History, Limits
from algorithm.training.reporter import DISPLAYED_UPDATES, SAMPLE_INTERVAL, Reporter
from algorithm.training.timer import PHASES, Timer
from tests.adapters.configs import config
from tests.doubles import ParityAgent, make_components
from tests.fakes import Skipping


class Run:
    """A reporter with a timer that the test advances."""

    def __init__(self, path, counters=None, metrics=None, **limits):
        parts = make_components(Skipping(config("", 2, {})), ParityAgent(rollout_length=4))
        parts.get("agent").learner.skipped_updates = 0
        limits = Limits(
            **{"max_step": 1000, "max_iter": None, "goal": 9.0, "evaluation_episodes": 20, **limits}, **EVERY
        )
        self.history = History(parts, counters or Counters())
        self.timer, self.counters, self.path = parts.timer, self.history.counters, path
        self.timer.lap = lambda part: None
        self.shown, self.logged = [], []
        metrics = metrics or MetricsWriter(path)
        self.reporter = Reporter(self.history, limits, metrics, self.logged.append, self.shown.append)

    def go(self, seconds=0, env_steps=0, updates=0, **spent):
        self.counters.env_steps += env_steps
        for part, share in (spent or {"acting": 1}).items():
            self.timer.seconds[part] += share * seconds
        for _ in range(updates):
            self.counters.updates += 1
            number = torch.tensor(float(self.counters.updates))
            metrics = {"train/entropy": number, "train/kl_to_average": -number, "train/critic_loss": 10 * number}
            self.reporter.record_update("agent", LossResult(lambda metrics=metrics: metrics, lambda: None))

    def write(self, *progress, **changes):
        """Make progress, as `go`, and log the metrics."""
        self.go(*progress, **changes)
        self.reporter.log_metrics()

    def show(self, *progress, **changes):
        """Make progress, as `go`, show it, and return what is shown."""
        self.go(*progress, **changes)
        self.reporter.show_progress()
        return self.shown[-1]

    @property
    def rows(self):
        with (self.path / "metrics.csv").open(newline="") as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


EVERY = {"log_every": 1, "save_every": None, "evaluate_every": None}


def test_a_row_has_throughput_and_time_fractions_since_the_last_row(run):
    run.write(10, 100, acting=0.5, environment=0.5)
    run.write(4, 200, updates=8, acting=0.25, learning=0.5, environment=0.125, reporting=0.125)
    first, second = run.rows
    assert first["time/env_steps_per_second"] == pytest.approx(10)
    assert second["time/env_steps_per_second"] == pytest.approx(50)
    assert second["time/updates_per_second"] == pytest.approx(2)
    shares = {"acting": 0.25, "learning": 0.5, "environment": 0.125, "reporting": 0.125}
    assert {part: second[f"time/{part}_fraction"] for part in PHASES} == pytest.approx(
        dict.fromkeys(PHASES, 0) | shares
    )
    assert second["time/seconds"] == pytest.approx(14)


def test_rows_have_cpu_seconds_if_they_were_counted_from_the_start(run):
    run.history.training.timer = Timer(iter([10.0, 12.5]).__next__)
    run.write(1, 5)
    run.counters.cpu_seconds = None  # as a checkpoint of an earlier version restores it
    run.reporter.history = History(run.history.training, run.counters)
    run.write(1, 5)
    first, second = run.rows
    assert first["time/cpu_seconds"] == 2.5 and "time/cpu_seconds" not in second


def test_there_is_no_row_without_env_steps(run):
    run.write(1, 5)
    run.write(1)
    assert [row["env_steps"] for row in run.rows] == [5]
    assert [progress.wrote_row for progress in run.shown] == [True]


def test_metrics_are_sampled_from_some_updates_and_averaged_per_row(run):
    run.write(1, 5, updates=2 * SAMPLE_INTERVAL)
    assert run.rows[0]["train/critic_loss"] == pytest.approx(10 * (1 + SAMPLE_INTERVAL + 2 * SAMPLE_INTERVAL) / 3)
    run.write(1, 5, updates=1)
    assert run.rows[1]["train/critic_loss"] == pytest.approx(10 * (2 * SAMPLE_INTERVAL + 1))


def test_displayed_metrics_are_of_the_latest_updates_until_there_are_newer_ones(run):
    run.show(1, 5, updates=SAMPLE_INTERVAL * 2 * DISPLAYED_UPDATES)
    latest = [SAMPLE_INTERVAL * (DISPLAYED_UPDATES + 1 + number) for number in range(DISPLAYED_UPDATES)]
    expected = {"entropy": sum(latest) / DISPLAYED_UPDATES, "KL to average": -sum(latest) / DISPLAYED_UPDATES}
    assert run.shown[-1].roles["agent"].policy_metrics == pytest.approx(expected)
    run.reporter.log_metrics()
    standing = run.show().roles["agent"]
    assert standing.policy_metrics == pytest.approx(expected)
    assert standing.losses == pytest.approx({"critic": 10 * expected["entropy"]})


def test_entropies_and_temperatures_of_sac_are_displayed(run):
    names = ["entropy_discrete", "entropy_continuous", "alpha_discrete", "alpha_continuous"]
    values = {f"train/{name}": torch.tensor(float(number)) for number, name in enumerate(names)}
    run.reporter.record_update("agent", LossResult(lambda: values, lambda: None))
    assert run.show().roles["agent"].policy_metrics == {
        "discrete entropy": 0,
        "continuous entropy": 1,
        "discrete temperature": 2,
        "continuous temperature": 3,
    }


def test_teams_that_share_an_agent_show_its_metrics_once(run):
    roles = run.history.training.adapter.roles
    roles["agent"] = replace(roles["agent"], teams=("Red", "Blue"))
    progress = run.show(1, 5, updates=1)
    assert [bool(each.losses or each.policy_metrics) for each in progress.roles.values()] == [True, False]
    assert list(progress.roles) == ["Red", "Blue"]


def test_the_start_counts_in_time_fractions_and_not_in_the_throughput(run):
    run.go(0.3, starting=1)
    progress = run.show(0.1, 8, updates=2)  # the first progress, soon after the start
    assert (progress.throughput.env_steps, progress.throughput.updates) == pytest.approx((80, 20))
    assert progress.throughput.shares == pytest.approx({**dict.fromkeys(PHASES, 0), "starting": 0.75, "acting": 0.25})
    assert progress.seconds_left == pytest.approx(12.4)
    assert progress.counters.seconds == pytest.approx(0.4)


def test_the_final_progress_has_the_throughput_of_the_whole_process(tmp_path):
    run = Run(tmp_path, Counters(env_steps=100, seconds=1000))
    run.write(6, 60, updates=30)
    run.go(2, evaluation=1)  # an evaluation after the last row
    run.reporter.close()
    progress = run.shown[-1]
    assert progress.has_ended and progress.seconds_left is None
    assert (progress.throughput.env_steps, progress.throughput.updates) == (7.5, 3.75)
    assert progress.throughput.shares == {**dict.fromkeys(PHASES, 0), "acting": 0.75, "evaluation": 0.25}
    assert progress.counters.seconds == 1008
    assert progress.roles["agent"].policy_metrics["entropy"] > 0
    assert not any(progress.has_ended for progress in run.shown[:-1])


def test_the_progress_of_a_run(run):
    for reward in [*[1.0] * WINDOW, *[5.0] * WINDOW, 3.0]:
        run.history.add_episodes([Episode(role="agent", lane=0, episode_return=reward, length=4)], {})
    progress = run.show(10, 250)
    assert (progress.wrote_row, progress.max_step, progress.goal, progress.fraction_done) == (False, 1000, 9.0, 0.25)
    assert progress.seconds_left == pytest.approx(30)
    assert progress.throughput.env_steps == pytest.approx(25)
    standing = progress.roles["agent"]
    assert (standing.mean, standing.first, standing.best, standing.length) == (4.9, 1, 5, 4)


def test_the_time_left_of_a_resumed_run_follows_from_this_process(tmp_path):
    run = Run(tmp_path, Counters(env_steps=800, seconds=10_000))
    assert run.show().seconds_left is None
    progress = run.show(10, 100)
    assert (progress.seconds_left, progress.counters.seconds) == pytest.approx((10, 10_010))


def test_shortly_after_a_row_the_throughput_of_the_row_is_displayed(run):
    run.write(10, 100)
    assert run.show(0.5, 50).throughput.env_steps == pytest.approx(10)
    assert run.show(1.5, 50).throughput.env_steps == pytest.approx(50)


def test_the_limits_that_a_run_has_reached_before_it_starts():
    counters = Counters(env_steps=1200, iterations=3)
    limits = Limits(log_every=10, max_step=1000, max_iter=3, pause_at=900, evaluation_episodes=20)
    assert limits.list_reached(counters) == [
        "the run has ended already, after 1,200 env steps: base_config.max_step above 1,000 continues it",
        "the run has ended already, after 3 iterations: base_config.max_iter above 3 continues it",
    ]
    assert replace(limits, max_step=1201, max_iter=None).list_reached(counters) == []


@pytest.mark.parametrize(
    ("max_step", "max_iter", "done"), [(None, None, None), (100, None, 0.5), (None, 4, 0.75), (100, 4, 0.75)]
)
def test_the_fraction_done_follows_the_nearest_limit(max_step, max_iter, done):
    limits = Limits(max_step=max_step, max_iter=max_iter, log_every=1, evaluation_episodes=20)
    assert limits.fraction_done(Counters(env_steps=50, iterations=3)) == done


def test_a_row_has_the_return_of_the_last_episode_alone(run):
    for returns in ((), (1.0, 5.0), (), (3.0,)):
        for value in returns:
            run.history.recent["agent"].add(value, 10)
        run.write(1, 5)
    assert [row.get("rollout/episode_return") for row in run.rows] == [None, 5, 5, 3]
    assert [row.get("rollout/return") for row in run.rows] == [None, 3, 3, 3]


def test_a_metric_that_some_updates_lack_is_the_mean_of_the_others(run):
    """An update that does not step a parameter group has no metrics of it."""
    for values in ({"a": 1.0}, {"a": 3.0, "b": 5.0}):
        run.reporter.add_samples("agent", [values])
    run.write(1, 5)
    assert (run.rows[0]["a"], run.rows[0]["b"]) == (2, 5)


def test_the_progress_has_the_last_and_the_best_evaluation_also_of_the_time_before_a_resume(tmp_path):
    def evaluate(run, env_steps, *returns):
        run.reporter.report_evaluation(env_steps, {"agent": EvaluationResult(list(returns), [1] * len(returns))})
        return get_evaluations(run)

    def get_evaluations(run):
        progress = run.show()
        return progress.evaluation, progress.best_evaluation

    run = Run(tmp_path)
    assert get_evaluations(run) == (None, None)
    first = EvaluatedMean(env_steps=100, mean=4.0)
    assert evaluate(run, 100, 3.0, 5.0) == (first, first)
    second = EvaluatedMean(env_steps=200, mean=2.0)
    assert evaluate(run, 200, 2.0) == (second, first)
    resumed = Run(tmp_path, metrics=MetricsWriter(tmp_path, 200, print))
    assert get_evaluations(resumed) == (second, first)
    third = EvaluatedMean(env_steps=300, mean=4.0)
    assert evaluate(resumed, 300, 4.0) == (third, third), "the newest of equally good ones is the best"
