"""The trackers of a run, of which each may fail, and the events that the reader of TensorBoard finds."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from algorithm.tracking.trackers import TensorBoard, Tracker, TrackerList, flatten_numbers, make_layout
from tests.tracking.runs import make_run


def read(folder, name="tensorboard"):
    return EventAccumulator(str(folder / name)).Reload()


def scalars(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_a_thread_that_cannot_write_prints_nothing(tmp_path):
    """The folder is removed, so that the thread that writes the events fails as on a full disk."""
    script = """
import logging, shutil, sys
from pathlib import Path
from algorithm.tracking.trackers import TensorBoard
from algorithm.tracking.trackers import TrackerList
from tests.tracking.runs import make_run

logging.basicConfig(stream=sys.stdout, format="%(message)s")
run = make_run(Path(sys.argv[1]))
tracker = TensorBoard(run)
tracker.writer.flush()
shutil.rmtree(run.folder / "tensorboard")
(run.folder / "tensorboard").touch()
trackers = TrackerList({"tensorboard": tracker})
trackers.log(10, {"a": 1.0})
trackers.finish({})
"""
    command = [sys.executable, "-c", script, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"the tracker tensorboard has failed \(NotADirectoryError.*\n", done.stdout)


def test_a_resumed_run_drops_the_events_after_its_checkpoint(tmp_path):
    for env_steps, rows in ((0, (10, 20, 30)), (20, (25, 35))):
        tracker = TensorBoard(make_run(tmp_path, env_steps=env_steps))
        for step in rows:
            tracker.log(step, {"a": step})
        tracker.finish(None)
    assert [step for step, _ in scalars(read(tmp_path), "a")] == [10, 20, 25, 35]


def test_the_settings_are_hyperparameters_and_text(tmp_path):
    settings = {"acer_config.gamma": 0.9, "base_config.seed": 3, "base_config.evaluate_greedy": True, "goal": None}
    config = "acer_config:\n  gamma: 0.9\n"
    run = make_run(tmp_path, settings=settings, config=config, suffixes=("/left", "/right"))
    TensorBoard(run).finish({"status": 0})
    events = read(tmp_path)

    def read_part(name):
        content = events.summary_metadata[f"_hparams_/{name}"].plugin_data.content
        return getattr(plugin_data_pb2.HParamsPluginData.FromString(content), name)

    started = read_part("session_start_info").hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in started.items()}
    assert values == settings | {"goal": "null"}
    assert "_hparams_/session_end_info" in events.summary_metadata
    metrics = {info.name.tag for info in read_part("experiment").metric_infos}
    assert metrics == {f"{name}/{role}" for name in ("rollout/return", "eval/return") for role in ("left", "right")}
    (text,) = events.Tensors("settings/text_summary")[0].tensor_proto.string_val
    assert text.decode() == "    acer_config:\n      gamma: 0.9\n"


def test_the_layout_is_read_and_has_a_margin_of_the_evaluations_of_each_role(tmp_path):
    TensorBoard(make_run(tmp_path)).finish(None)
    events = read(tmp_path)
    assert "_hparams_/session_end_info" not in events.summary_metadata  # the run did not begin
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    assert {"return", "losses", "gradient norms", "fractions"} <= set(charts)
    margin = charts["return in evaluation, with its interval"].margin.series[0]
    assert (margin.value, margin.lower, margin.upper) == ("eval/return", "eval/return_low", "eval/return_high")
    charts = make_layout(("/left", "/right"))["episodes"]
    assert charts["return in evaluation, with its interval left"][1][0] == "eval/return/left"
    assert charts["return in evaluation, with its interval right"][1][2] == "eval/return_high/right"


@pytest.mark.parametrize(
    ("title", "lines", "others"),
    [
        ("return", ["rollout/return", "eval/return/left"], ["eval/return_low"]),
        ("losses", ["train/critic_loss", "train/curiosity_loss/left"], ["train/value"]),
        ("values", ["train/value", "train/rnd_value", "train/value/left"], ["train/explained_variance"]),
        ("entropy", ["train/entropy", "train/entropy_discrete/left"], ["train/importance_ratio"]),
        ("learning rates", ["train/acer_learning_rate"], ["train/acer_gradient_norm"]),
        ("gradient norms", ["train/curiosity_gradient_norm/left"], ["train/curiosity_loss"]),
        ("lag", ["cluster/lag", "cluster/lag_max"], ["cluster/queue"]),
        ("waiting", ["cluster/actor_waiting", "cluster/learner_1_waiting"], ["cluster/learner_1_updates_per_second"]),
        ("env steps and updates per second", ["time/updates_per_second"], ["time/updates"]),
        ("fractions", ["time/acting_fraction"], ["train/clip_fraction"]),
    ],
)
def test_charts_have_the_lines_of_all_roles(title, lines, others):
    charts = {title: chart for charts in make_layout(("",)).values() for title, chart in charts.items()}
    kind, (expression,) = charts[title]
    assert kind == "Multiline"
    assert all(re.match(expression, line) for line in lines)
    assert not any(re.match(expression, line) for line in others)


def test_histograms_have_the_values(tmp_path):
    tracker = TensorBoard(make_run(tmp_path))
    tracker.log_histograms(10, {"actions/0": np.array([0.0, 1, 1, 2])})
    tracker.finish(None)
    (event,) = read(tmp_path).Histograms("actions/0")
    value = event.histogram_value
    assert (event.step, value.num, value.sum, value.min, value.max) == (10, 4, 4, 0, 2)


def test_other_names_are_in_a_folder_of_each_role(tmp_path):
    def rename(values):
        return {role: {"Environment/Cumulative Reward": values[f"rollout/return/{role}"]} for role in ("3DBall?", "b")}

    tracker = TensorBoard(make_run(tmp_path, suffixes=()), rename)
    for step in (10, 20):
        tracker.log(step, {"rollout/return/3DBall?": step + 1, "rollout/return/b": step + 2})
    tracker.finish(None)
    for folder, first in (("3DBall%3F", 11), ("b", 12)):
        events = read(tmp_path / "tensorboard", folder)
        assert scalars(events, "Environment/Cumulative Reward") == [(10, first), (20, first + 10)]
    assert scalars(read(tmp_path), "rollout/return/b") == [(10, 12), (20, 22)]


@pytest.mark.parametrize("fails_at", ["log", "log_histograms", "finish"])
def test_a_tracker_that_fails_is_one_line_and_receives_nothing_further(fails_at, caplog):
    failing, other = Mock(spec=Tracker), Mock(spec=Tracker)
    getattr(failing, fails_at).side_effect = OSError(28, "No space left on device")
    trackers = TrackerList({"failing": failing, "other": other})
    with caplog.at_level(logging.WARNING):
        trackers.log_histograms(10, {})
        trackers.log(10, {})
        trackers.log(20, {})
        trackers.finish({"status": 0})
    trackers.finish(None)  # has no effect
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker failing has failed (OSError: [Errno 28] No space left on device); the run continues without it, "
        "and metrics.csv has all metrics"
    ]
    everything = [call.log_histograms(10, {}), call.log(10, {}), call.log(20, {}), call.finish({"status": 0})]
    assert other.method_calls == everything
    assert failing.method_calls == everything[: {"log_histograms": 1, "log": 2, "finish": 4}[fails_at]]


def test_an_interrupt_is_not_a_failure_of_a_tracker():
    with pytest.raises(KeyboardInterrupt):
        TrackerList({"a": Mock(spec=Tracker, log=Mock(side_effect=KeyboardInterrupt))}).log(10, {})


def test_the_id_is_read_by_the_tracker_that_has_written_it(tmp_path):
    run = make_run(tmp_path)
    assert run.read_id("wandb") is None
    run.write_id("wandb", "abc")
    assert (run.read_id("wandb"), run.read_id("mlflow")) == ("abc", None)
    (tmp_path / "tracker.json").write_text("{damaged")
    assert run.read_id("wandb") is None


def test_the_numbers_of_a_result():
    record = {"status": 0, "reached": True, "name": "a", "evaluation": {"agent": {"mean": 1.5, "low": None}}}
    numbers = {"result/status": 0, "result/reached": 1, "result/evaluation/agent/mean": 1.5}
    assert flatten_numbers(record, "result/") == numbers
