"""The events of a run, and callbacks that stop it."""

from __future__ import annotations

import pytest

from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback, TimeLimit
from tests.checkpointing.test_resume import new_run

BASE = {"max_step": 300, "save_every": 60, "evaluate_every": 100, "log_every": 30}


class Recorder(Callback):
    """A callback that records events, and returns True at the event `stop_at`."""

    def __init__(self, stop_at: str | None = None):
        self.stop_at = stop_at
        self.events: list[tuple[str, object]] = []

    def on_progress(self, progress):
        return self._record("progress", progress)

    def on_evaluation(self, results):
        return self._record("evaluation", results)

    def on_checkpoint(self, checkpoint):
        return self._record("checkpoint", checkpoint)

    def on_end(self, result):
        self._record("end", result)

    def of(self, event: str) -> list:
        return [value for name, value in self.events if name == event]

    def _record(self, event: str, value: object) -> bool:
        self.events.append((event, value))
        return event == self.stop_at


def run(tmp_path, *callbacks: Callback, **base):
    folder = new_run(tmp_path, "a", "probe", **{**BASE, **base})
    return folder, train(folder.load_settings(), folder, lambda line: None, callbacks)


def test_a_callback_receives_every_event(tmp_path):
    recorder = Recorder()
    folder, result = run(tmp_path, recorder)
    saved = [checkpoint.counters.env_steps for checkpoint in recorder.of("checkpoint")]
    assert saved == sorted(set(saved)) and saved[-1] == result.counters.env_steps
    evaluations = recorder.of("evaluation")
    assert len(evaluations) == 3 and evaluations[-1] == result.evaluation
    rows = [progress for progress in recorder.of("progress") if progress.wrote_row]
    assert len(rows) == 10
    assert recorder.events[-1] == ("end", result)
    assert recorder.of("progress")[-1].has_ended
    assert not result.stopped


@pytest.mark.parametrize("event", ["progress", "evaluation", "checkpoint"])
def test_a_callback_that_returns_true_stops_the_run_like_max_step(tmp_path, event):
    stopping, other = Recorder(event), Recorder()
    folder, result = run(tmp_path, stopping, other)
    assert result.stopped and result.goal_reached is not True
    assert result.counters.env_steps < 300
    assert folder.find_latest().counters.env_steps == result.counters.env_steps
    assert other.of("evaluation") and other.of("evaluation")[-1] == result.evaluation
    assert other.of("end") == [result]


def test_a_run_that_ends_at_max_step_is_not_marked_as_stopped(tmp_path):
    class AtTheEnd(Callback):
        def on_progress(self, progress):
            return progress.has_ended

    assert not run(tmp_path, AtTheEnd())[1].stopped


@pytest.mark.parametrize(("seconds", "stopped"), [(0, True), (10**9, False)])
def test_a_run_is_stopped_when_its_time_is_over(tmp_path, seconds, stopped):
    _, result = run(tmp_path, TimeLimit(seconds))
    assert result.stopped == stopped
    assert (result.counters.env_steps < 300) == stopped
