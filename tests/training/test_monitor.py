"""What the monitor does, and when; with a real reporter, whose output is checked."""

from __future__ import annotations

import json
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.store import BestCheckpoint
from algorithm.runs.callbacks import CallbackList
from algorithm.training.evaluator import EvaluationResult, Evaluations, Outcome
from algorithm.training.invalid_values import Episode
from algorithm.training.metrics import MetricsWriter, read_table
from algorithm.training.monitor import Monitor
from algorithm.training.progress import WINDOW, Counters, History, Limits
from algorithm.training.reporter import Reporter
from tests.adapters.configs import config
from tests.doubles import ParityAgent, make_components
from tests.fakes import Skipping

EPISODES = 20  # of an evaluation


class LaterEvaluations(Evaluations):
    """Evaluations whose results are received once `is_ready` is set, or if the monitor waits for them."""

    is_concurrent = True

    def start(self, confirmation_episodes):
        super().start(confirmation_episodes)
        self.is_ready = False

    def receive(self, timeout):
        return self._outcome if self.is_ready or timeout else None


class Run:
    """A monitored run without environments, which records evaluations and checkpoints with their env steps."""

    def __init__(self, path, kind=Evaluations, env_steps=0, evaluation_means=(), confirmations=(), **limits):
        none = dict.fromkeys(["max_step", "max_iter", "save_every", "evaluate_every", "goal"])
        self.path, self.broken = path, None
        self.evaluation_means, self.confirmations = deque(evaluation_means), deque(confirmations)
        self.done: list[tuple[str, int]] = []
        self.logged: list[str] = []
        self.shown = []
        self.parts = make_components(Skipping(config("", 2, {})), ParityAgent(rollout_length=4))
        self.parts.get("agent").learner.skipped_updates = 0
        self.counters = Counters(env_steps=env_steps)
        limits = Limits(**{**none, "log_every": 10**9, "evaluation_episodes": EPISODES, **limits})
        history = History(self.parts, self.counters)
        reporter = Reporter(history, limits, MetricsWriter(path), self.logged.append, self.shown.append)
        self.evaluations = kind(self._evaluate)
        best, callbacks = BestCheckpoint(path), CallbackList([])
        self.monitor = Monitor(history, limits, reporter, self.evaluations, self._save, best, callbacks)
        self.actor = SimpleNamespace(env_steps=0, episodes=deque(), active_lanes={"agent": np.ones(2, bool)})

    def go(self, env_steps: int, *returns: float, role="agent") -> bool:
        """Make a tick of `env_steps`, in which episodes with these returns end. Return whether the run is over."""
        self.actor.env_steps = env_steps
        self.actor.episodes.extend(Episode(role=role, lane=0, episode_return=each, length=10) for each in returns)
        return self.monitor.tick(self.actor)

    def _evaluate(self, confirmation_episodes):
        if confirmation_episodes:
            self.done.append((f"confirm with {confirmation_episodes}", self.counters.env_steps))
        self.done.append(("evaluate", self.counters.env_steps))
        if self.broken:
            raise self.broken
        confirmation = make_results(self.confirmations, confirmation_episodes) if confirmation_episodes else None
        return Outcome(results=make_results(self.evaluation_means, EPISODES), confirmation=confirmation)

    def _save(self, counters):
        place = self.path / str(counters.env_steps)
        place.mkdir(exist_ok=True)
        self.done.append(("save", counters.env_steps))
        return Checkpoint(place)

    def list_moments(self, word: str) -> list[int]:
        """Return the env steps of each action whose name starts with a word."""
        return [moment for what, moment in self.done if what.startswith(word)]

    @property
    def best(self):
        checkpoint = BestCheckpoint(self.path).checkpoint
        return checkpoint and int(checkpoint.folder.name)


def make_results(means, episodes):
    mean = means.popleft() if means else 0.0
    return {"agent": EvaluationResult([mean - 1, mean + 1] * (episodes // 2), [5] * episodes)}


def rows(path):
    return read_table(path / "metrics.csv").rows


def test_intervals_are_env_steps_for_any_number_of_steps_per_tick(tmp_path):
    run = Run(tmp_path, save_every=10)
    for env_steps in (6, 6, 6, 6, 40):
        run.go(env_steps)
    assert run.done == [("save", 12), ("save", 24), ("save", 64)]


def test_a_resumed_run_does_not_repeat_actions_of_its_checkpoint(tmp_path):
    run = Run(tmp_path, env_steps=20, save_every=10, evaluate_every=10)
    run.go(5)
    assert run.done == []
    run.go(5)
    assert run.done == [("evaluate", 30), ("save", 30)]


def test_better_weights_are_saved_at_once_and_worse_ones_are_not(tmp_path):
    run = Run(tmp_path, evaluate_every=10, evaluation_means=[-5, 3, 2.9, 3, 4])
    best = []
    for _ in range(5):
        run.go(10)
        best.append(run.best)
    assert best == [10, 20, 20, 40, 50]  # the newest of equally good ones
    assert run.list_moments("save") == [10, 20, 40, 50]
    assert BestCheckpoint(tmp_path).mean == 4


def test_the_goal_is_confirmed_by_evaluation_episodes_or_checked_again_later(tmp_path):
    run = Run(tmp_path, goal=9.0, confirmations=[8, 9.5], evaluation_means=[9.1, 8.8])
    assert not run.go(10, *[9.0] * (WINDOW - 1))
    assert run.done == []
    assert not run.go(10, 9.0)
    assert run.done == [("confirm with 20", 20), ("evaluate", 20), ("save", 20)] and not run.monitor.confirmed_by
    assert not run.go(10, *[9.0] * (WINDOW - 1))
    assert run.go(10, 9.0)
    assert run.monitor.confirmed_by
    assert run.done[3:] == [("confirm with 40", 40), ("evaluate", 40), ("save", 40)]


def test_the_episodes_that_confirm_the_goal_are_not_reported(tmp_path):
    run = Run(tmp_path, goal=9.0, confirmations=[9.5], evaluation_means=[8.5])
    assert run.go(10, *[9.0] * WINDOW)
    assert run.monitor.confirmed_by and run.monitor.evaluation["agent"].mean == BestCheckpoint(tmp_path).mean == 8.5
    (row,) = rows(tmp_path)
    interval = [float(row[f"eval/return{bound}"]) for bound in ("_low", "", "_high")]
    assert interval == pytest.approx([8.020, 8.5, 8.980], abs=1e-3)
    assert run.logged == [
        "goal confirmed at 10 env steps: return 9.500 (95% interval 9.020 to 9.980) over 20 episodes, greedy",
        "evaluation at 10 env steps: return 8.500 (95% interval 8.020 to 8.980) over 20 episodes, greedy",
    ]


def test_each_confirmation_that_fails_makes_the_next_one_longer_and_later(tmp_path):
    run = Run(tmp_path, goal=9.0, evaluation_episodes=10, confirmations=[8] * 9)
    for _ in range(200):
        run.go(1, 9.0)
    lengths = [(int(what.split()[-1]), moment) for what, moment in run.done if what.startswith("confirm")]
    assert lengths == [(10, 20), (20, 30), (30, 50), (40, 80), (50, 120), (60, 170)]


def test_every_role_ends_new_episodes_before_the_next_confirmation(tmp_path):
    run = Run(tmp_path, goal=9.0, confirmations=[8, 9])
    run.parts.by_role["other"] = run.parts.get("agent")
    run.go(1, *[9.0] * WINDOW)
    run.go(1, *[9.0] * WINDOW, role="other")
    assert run.list_moments("confirm") == [2]
    assert not run.go(1, *[9.0] * 5 * WINDOW)
    assert not run.go(1, *[9.0] * (WINDOW - 1), role="other")
    assert run.go(1, 9.0, role="other")


@pytest.mark.parametrize("means", [[9.5, 9.5], [8.0, 9.5]])
def test_a_run_that_is_resumed_at_its_goal_confirms_it_again(tmp_path, means):
    """The run may have been stopped in the evaluation. A run whose evaluation missed the goal continues."""
    run = Run(tmp_path, goal=9.0, confirmations=means[:1])
    is_over = run.go(10, *[9.0] * WINDOW)
    resumed = Run(tmp_path, env_steps=10, goal=9.0, confirmations=means[1:])
    resumed.monitor.history.restore(run.monitor.history.state())
    assert is_over == resumed.monitor.do_due() == (means[0] >= 9.0)
    assert resumed.done == [("confirm with 20", 10), ("evaluate", 10), ("save", 10)] * is_over


def test_without_evaluation_a_goal_is_confirmed_by_later_training_episodes(tmp_path):
    run = Run(tmp_path, goal=9.0)
    run.broken = EnvironmentStartError("one licence,\none seat")
    assert not run.go(10, *[9.0] * WINDOW)
    assert run.logged == [
        "evaluation at 10 env steps is not possible: one licence, one seat; "
        "training continues without evaluation; training episodes alone confirm the goal"
    ]
    # The next window misses the goal, which the last episodes before it and the first of it would have reached.
    assert not run.go(10, *[9.0] * (WINDOW // 2))
    assert not run.go(10, *[8.0] * (WINDOW // 2))
    assert not run.go(10, *[9.0] * WINDOW)
    assert not run.go(10, *[9.0] * WINDOW)  # the second one is twice as long
    assert not run.go(10, *[9.0] * (WINDOW - 1))
    assert run.monitor.confirmed_by is None
    assert run.go(10, 9.0)
    assert run.monitor.confirmed_by == "training"
    assert run.done == [("confirm with 20", 10), ("evaluate", 10), ("save", 70)] and run.best == 70


@pytest.mark.parametrize("error", [EnvironmentStartError, EnvironmentCrashed])
def test_an_evaluation_that_fails_leaves_the_last_result(tmp_path, error):
    run = Run(tmp_path, evaluate_every=10, max_step=30, evaluation_means=[3])
    run.go(10)
    run.broken = error("no seat")
    run.go(10)
    assert run.go(10)
    assert run.monitor.evaluation["agent"].mean == 3 and run.best == 10
    assert [what for what, _ in run.done] == ["evaluate", "save", "evaluate"]


def test_weights_that_confirmed_the_goal_are_the_best(tmp_path):
    run = Run(tmp_path, goal=9.0, evaluate_every=10, evaluation_means=[100, 9.5], confirmations=[9.5])
    run.go(10)
    assert run.best == 10
    assert run.go(5, *[8.0, 10.0] * (WINDOW // 2))  # the goal is a mean return
    assert run.best == 15


@pytest.mark.parametrize("interval", [None, 10], ids=["end", "end and interval"])
def test_a_run_is_evaluated_once_at_its_end(tmp_path, interval):
    run = Run(tmp_path, max_step=20, evaluate_every=interval, goal=100.0, evaluation_means=[1, 2])
    assert [run.go(10), run.go(10)] == [False, True]
    assert run.list_moments("evaluate").count(20) == 1 and run.best == 20


def test_there_is_no_evaluation_without_a_goal_or_an_interval(tmp_path):
    run = Run(tmp_path, max_step=20)
    assert run.go(20)
    assert run.done == [] and run.best is None


def test_an_interrupted_run_is_saved_and_not_evaluated(tmp_path):
    run = Run(tmp_path, max_step=100)
    run.go(30)
    run.monitor.finish()
    assert run.done == [("save", 30)]
    assert [row["env_steps"] for row in rows(tmp_path)] == ["30"]


def test_the_last_row_is_written_even_if_saving_fails(tmp_path):
    run = Run(tmp_path)
    run.go(30)
    run.monitor.save = Mock(side_effect=OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        run.monitor.finish()
    assert [row["env_steps"] for row in rows(tmp_path)] == ["30"]


def test_the_display_is_updated_by_wall_time(tmp_path):
    run = Run(tmp_path)
    timer = run.parts.timer
    timer.lap = lambda part: None
    timer.last_lap = 0.0
    for timer.last_lap in (0.0, 0.1, 0.2, 0.26, 0.3, 0.52):
        run.go(1)
    assert [progress.counters.env_steps for progress in run.shown] == [1, 4, 6]


def test_a_restored_run_checks_the_goal_as_the_first(tmp_path):
    first, second = (Run(tmp_path, goal=9.0, confirmations=means) for means in ([0, 9], [9]))
    first.go(1, *[9.0] * (WINDOW + 5))
    second.monitor.history.restore(json.loads(json.dumps(first.monitor.history.state())))
    for run in (first, second):
        assert not run.go(1, *[9.0] * (WINDOW - 1))
        assert run.go(1, 9.0)


def test_what_is_due_is_known_before_it_is_done(tmp_path):
    run = Run(tmp_path, confirmations=[5.0], log_every=10, save_every=25, max_step=32, goal=4.0)
    monitor = run.monitor
    assert (monitor.next_due, monitor.is_due) == (10, False)
    run.counters.env_steps += 9
    assert not monitor.is_due
    run.counters.env_steps += 1
    assert monitor.is_due
    assert not monitor.do_due()
    assert (monitor.next_due, monitor.is_due) == (20, False)
    active = {"agent": np.ones(2, bool)}
    episodes = [Episode(role="agent", lane=0, episode_return=3.0, length=1)] * WINDOW
    monitor.count_episodes(episodes, active)
    assert not monitor.is_due  # the goal is not reached
    run.counters.env_steps += 21
    assert monitor.next_due == 20
    monitor.do_due()
    assert monitor.next_due == 32  # the end of the run
    better = [Episode(role="agent", lane=0, episode_return=4.0, length=1)] * WINDOW
    monitor.count_episodes(better, active)
    assert monitor.is_due
    assert run.done == [("save", 31)]
    assert monitor.do_due()
    assert run.done == [("save", 31), ("confirm with 20", 31), ("evaluate", 31), ("save", 31)]
    assert monitor.confirmed_by == "evaluation"


def test_the_result_of_an_evaluation_belongs_to_the_weights_with_which_it_started(tmp_path):
    """Their checkpoint is kept until then."""
    run = Run(tmp_path, LaterEvaluations, evaluate_every=10, evaluation_means=[7.0, 3.0])
    run.go(10)
    assert run.done == [("save", 10), ("evaluate", 10)] and run.best is None
    run.go(3)
    assert run.monitor.evaluation is None and run.monitor.best.candidate.folder.name == "10"
    run.evaluations.is_ready = True
    run.go(4)
    assert run.best == 10 and run.logged[0].startswith("evaluation at 10 env steps: return 7.000 ")
    assert run.monitor.best.candidate is None and [row["env_steps"] for row in rows(tmp_path)] == ["10"]
    assert run.monitor.evaluation["agent"].env_steps == 10
    run.go(3)
    run.evaluations.is_ready = True
    run.go(1)
    assert run.best == 10 and run.monitor.evaluation["agent"].env_steps == 20


def test_an_evaluation_that_is_due_waits_for_the_one_before_it(tmp_path):
    run = Run(tmp_path, LaterEvaluations, evaluate_every=10, goal=9.0)
    run.go(10)
    run.go(5, *[9.0] * WINDOW)  # the goal is to be confirmed, by the evaluation that the interval makes due, too
    run.go(15)
    assert run.list_moments("evaluate") == [10]
    run.evaluations.is_ready = True
    run.go(4)  # receives the result
    run.go(1)
    assert run.list_moments("evaluate") == [10, 35] and run.list_moments("confirm") == [35]


def test_training_continues_until_the_goal_is_confirmed(tmp_path):
    run = Run(tmp_path, LaterEvaluations, goal=9.0, confirmations=[8.0, 9.5], max_step=1000)
    assert not run.go(10, *[9.0] * WINDOW)
    assert not run.go(10, *[9.0] * WINDOW)
    run.evaluations.is_ready = True
    assert not run.go(1)  # it is not confirmed
    assert not run.go(1, *[9.0] * (WINDOW - 1))
    assert not run.go(1, 9.0)
    run.evaluations.is_ready = True
    assert not run.monitor.confirmed_by
    assert run.go(5)
    assert run.monitor.confirmed_by == "evaluation" and run.best == 23
    assert run.list_moments("evaluate") == [10, 23]


def test_a_run_waits_at_its_end_for_the_evaluation_of_its_last_weights(tmp_path):
    run = Run(tmp_path, LaterEvaluations, max_step=20, evaluate_every=10, evaluation_means=[1.0, 2.0])
    assert not run.go(10)
    assert run.go(10)
    assert run.list_moments("evaluate") == [10, 20]
    assert run.best == 20 and run.monitor.evaluation["agent"].mean == 2.0


def test_an_interrupted_run_loses_the_evaluation_that_has_not_ended(tmp_path):
    run = Run(tmp_path, LaterEvaluations, evaluate_every=10)
    run.go(10)
    run.go(1)
    run.monitor.finish()
    assert run.logged == ["the evaluation at 10 env steps is lost, since the run ends"]
    assert run.monitor.evaluation is None and run.best is None


def test_weights_without_a_checkpoint_are_not_the_best(tmp_path):
    run = Run(tmp_path, LaterEvaluations, evaluate_every=10, evaluation_means=[7.0])
    save, run.monitor.save = run.monitor.save, lambda counters: None
    run.go(10)
    run.monitor.save = save
    run.evaluations.is_ready = True
    run.go(1)
    assert run.monitor.evaluation["agent"].mean == 7.0 and run.best is None


def test_a_goal_whose_evaluation_fails_is_confirmed_by_training_episodes(tmp_path):
    run = Run(tmp_path, LaterEvaluations, goal=9.0)
    run.go(10, *[9.0] * WINDOW)
    run.evaluations.receive = Mock(side_effect=EnvironmentCrashed("no actor"))
    run.go(5)
    assert run.logged == [
        "evaluation at 10 env steps is not possible: no actor; "
        "training continues without evaluation; training episodes alone confirm the goal"
    ]
    assert run.go(5, *[9.0] * WINDOW)
    assert run.monitor.confirmed_by == "training"
