"""The events of a run, and callbacks that stop it."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest

from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback, TimeLimit
from tests.checkpointing.test_resume import new_run

BASE = {"max_step": 300, "save_every": 60, "evaluate_every": 100, "log_every": 30}


EVENTS = ("on_progress", "on_evaluation", "on_checkpoint", "on_end")


def make_recorder(stop_at: str | None = None) -> Mock:
    """Return a callback that records its events, and returns True at the event `stop_at`."""
    returned = {f"{event}.return_value": event == stop_at for event in EVENTS}
    return Mock(spec=Callback, **returned)


def list_values(recorder: Mock, event: str) -> list:
    return [call.args[0] for call in getattr(recorder, event).call_args_list]


def run(tmp_path, *callbacks: Callback, **base):
    folder = new_run(tmp_path, "a", "probe", **{**BASE, **base})
    return folder, train(folder.load_settings(), folder, lambda line: None, callbacks)


def test_a_callback_receives_every_event(tmp_path):
    recorder = make_recorder()
    folder, result = run(tmp_path, recorder)
    saved = [checkpoint.counters.env_steps for checkpoint in list_values(recorder, "on_checkpoint")]
    assert saved == sorted(set(saved)) and saved[-1] == result.counters.env_steps
    evaluations = list_values(recorder, "on_evaluation")
    assert len(evaluations) == 3 and evaluations[-1] == result.evaluation
    progress = list_values(recorder, "on_progress")
    assert len([each for each in progress if each.wrote_row]) == 10 and progress[-1].has_ended
    assert recorder.method_calls[-1] == call.on_end(result)
    assert not result.stopped


@pytest.mark.parametrize("event", EVENTS[:3])
def test_a_callback_that_returns_true_stops_the_run_like_max_step(tmp_path, event):
    stopping, other = make_recorder(event), make_recorder()
    folder, result = run(tmp_path, stopping, other)
    assert result.stopped and result.goal_reached is not True
    assert result.counters.env_steps < 300
    assert folder.find_latest().counters.env_steps == result.counters.env_steps
    assert list_values(other, "on_evaluation")[-1] == result.evaluation
    assert list_values(other, "on_end") == [result]


def test_a_run_that_ends_at_max_step_is_not_marked_as_stopped(tmp_path):
    recorder = make_recorder()
    recorder.on_progress.side_effect = lambda progress: progress.has_ended
    assert not run(tmp_path, recorder)[1].stopped


def test_a_run_is_stopped_when_its_time_is_over():
    assert TimeLimit(0).on_progress(None) and not TimeLimit(10**9).on_progress(None)
