"""What TensorBoard's own reader finds in the events of a run."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from algorithm.tracking.trackers import TensorBoard, make_layout
from tests.tracking.runs import make_run


def read(folder):
    return EventAccumulator(str(folder)).Reload()


def scalars(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_metrics_are_scalars_by_env_steps(tmp_path):
    tracker = TensorBoard(make_run(tmp_path))
    tracker.log(10, {"rollout/return": 1.5})
    tracker.log(20, {"rollout/return": 2.5, "train/value": 0.5})
    tracker.finish({"status": 0})
    events = read(tmp_path / "tensorboard")
    assert scalars(events, "rollout/return") == [(10, 1.5), (20, 2.5)]
    assert scalars(events, "train/value") == [(20, 0.5)]


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
    assert [step for step, _ in scalars(read(tmp_path / "tensorboard"), "a")] == [10, 20, 25, 35]


def test_the_settings_are_hyperparameters_and_text(tmp_path):
    run = make_run(
        tmp_path,
        settings={"acer_config.gamma": 0.9, "base_config.seed": 3, "base_config.evaluate_greedy": True, "goal": None},
        config="acer_config:\n  gamma: 0.9\n",
        suffixes=("/left", "/right"),
    )
    tracker = TensorBoard(run)
    tracker.finish({"status": 0})
    events = read(tmp_path / "tensorboard")
    parts = {
        name.rpartition("/")[2]: plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)
        for name, metadata in events.summary_metadata.items()
        if name.startswith("_hparams_/")
    }
    started = parts["session_start_info"].session_start_info.hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in started.items()}
    assert values == {
        "acer_config.gamma": 0.9,
        "base_config.seed": 3,
        "base_config.evaluate_greedy": True,
        "goal": "null",
    }
    metrics = {info.name.tag for info in parts["experiment"].experiment.metric_infos}
    assert metrics == {f"{name}/{role}" for name in ("rollout/return", "eval/return") for role in ("left", "right")}
    (text,) = events.Tensors("settings/text_summary")[0].tensor_proto.string_val
    assert text.decode() == "    acer_config:\n      gamma: 0.9\n"


def test_a_run_that_did_not_begin_has_no_end_of_its_session(tmp_path):
    TensorBoard(make_run(tmp_path)).finish(None)
    assert "_hparams_/session_end_info" not in read(tmp_path / "tensorboard").summary_metadata


def test_the_layout_is_read_and_its_lines_are_metrics(tmp_path):
    TensorBoard(make_run(tmp_path)).finish(None)
    (event,) = read(tmp_path / "tensorboard").Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    assert {"return", "losses", "gradient norms", "fractions"} <= set(charts)
    margin = charts["return in evaluation, with its interval"].margin.series[0]
    assert (margin.value, margin.lower, margin.upper) == ("eval/return", "eval/return_low", "eval/return_high")


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


def test_each_role_has_a_margin_of_its_evaluations():
    charts = make_layout(("/left", "/right"))["episodes"]
    assert charts["return in evaluation, with its interval left"][1][0] == "eval/return/left"
    assert charts["return in evaluation, with its interval right"][1][2] == "eval/return_high/right"


def test_histograms_have_the_values(tmp_path):
    tracker = TensorBoard(make_run(tmp_path))
    tracker.log_histograms(10, {"actions/0": np.array([0.0, 1, 1, 2])})
    tracker.finish(None)
    (event,) = read(tmp_path / "tensorboard").Histograms("actions/0")
    value = event.histogram_value
    assert (event.step, value.num, value.sum, value.min, value.max) == (10, 4, 4, 0, 2)


def test_other_names_are_in_a_folder_of_each_role(tmp_path):
    def rename(values):
        return {role: {"Environment/Cumulative Reward": values[f"rollout/return/{role}"]} for role in ("3DBall?", "b")}

    tracker = TensorBoard(replace(make_run(tmp_path), suffixes=()), rename)
    for step in (10, 20):
        tracker.log(step, {"rollout/return/3DBall?": step + 1, "rollout/return/b": step + 2})
    tracker.finish(None)
    folder = tmp_path / "tensorboard"
    assert scalars(read(folder / "3DBall%3F"), "Environment/Cumulative Reward") == [(10, 11), (20, 21)]
    assert scalars(read(folder / "b"), "Environment/Cumulative Reward") == [(10, 12), (20, 22)]
    assert scalars(read(folder), "rollout/return/b") == [(10, 12), (20, 22)]
