"""The trackers of a run, of which each may fail."""

import logging

import pytest

from algorithm.tracking.trackers import Tracker, TrackerList, flatten_numbers
from tests.tracking.runs import make_run


class Recorder(Tracker):
    """A tracker that records its calls, and fails at one of them."""

    def __init__(self, fails_at=None):
        self.calls, self.fails_at = [], fails_at

    def log(self, env_steps, values):
        self._call("log", env_steps)

    def log_histograms(self, env_steps, values):
        self._call("histograms", env_steps)

    def finish(self, record):
        self._call("finish", record)

    def _call(self, name, argument):
        self.calls.append((name, argument))
        if name == self.fails_at:
            raise OSError(28, "No space left on device")


def use(trackers):
    trackers.log(10, {})
    trackers.log_histograms(10, {})
    trackers.log(20, {})
    trackers.finish({"status": 0})


@pytest.mark.parametrize("fails_at", ["log", "histograms", "finish"])
def test_a_tracker_that_fails_is_one_line_and_receives_nothing_further(fails_at, caplog):
    failing, other = Recorder(fails_at), Recorder()
    with caplog.at_level(logging.WARNING):
        use(TrackerList({"failing": failing, "other": other}))
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker failing has failed (OSError: [Errno 28] No space left on device); the run continues without it, "
        "and metrics.csv has all metrics"
    ]
    everything = [("log", 10), ("histograms", 10), ("log", 20), ("finish", {"status": 0})]
    assert other.calls == everything
    last = next(index for index, (name, _) in enumerate(everything) if name == fails_at)
    assert failing.calls == everything[: last + 1]


def test_trackers_are_finished_once():
    recorder = Recorder()
    trackers = TrackerList({"a": recorder})
    trackers.finish({"status": 0})
    trackers.finish(None)
    assert recorder.calls == [("finish", {"status": 0})]


def test_an_interrupt_is_not_a_failure_of_a_tracker():
    class Interrupted(Recorder):
        def log(self, env_steps, values):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrackerList({"a": Interrupted()}).log(10, {})


def test_the_id_is_read_by_the_tracker_that_has_written_it(tmp_path):
    run = make_run(tmp_path)
    assert run.read_id("wandb") is None
    run.write_id("wandb", "abc")
    assert (run.read_id("wandb"), run.read_id("mlflow")) == ("abc", None)
    (tmp_path / "tracker.json").write_text("{damaged")
    assert run.read_id("wandb") is None


def test_the_numbers_of_a_result():
    record = {"status": 0, "reached": True, "name": "a", "evaluation": {"agent": {"mean": 1.5, "low": None}}}
    assert flatten_numbers(record, "result/") == {
        "result/status": 0,
        "result/reached": 1,
        "result/evaluation/agent/mean": 1.5,
    }
