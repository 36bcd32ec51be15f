"""Weights & Biases, MLflow and Trackio, offline: what their own readers find of a run and of its continuation."""

import json
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithm.errors import UserError
from algorithm.tracking.trackers import MlflowTracker, TrackioTracker, WandbTracker, clean_name
from tests.tracking.runs import make_run

ROOT = Path(__file__).resolve().parents[2]
RECORD = {"status": 0, "env_steps": 30, "reached": True, "evaluation": {"agent": {"mean": 480.5}}}


def track_and_resume(tracker_class, run):
    """Track the first rows of a run, then its continuation from 20 env steps. Return its id."""
    first = tracker_class(run)
    for env_steps in (10, 20):
        first.log(env_steps, {"rollout/return": env_steps / 10, "train/value": float("nan")})
    first.log_histograms(20, {"actions/0": np.arange(4.0)})
    first.finish({**RECORD, "status": 130})
    run_id = json.loads((run.folder / "tracker.json").read_text())["id"]
    second = tracker_class(make_run(run.folder, runs=run.runs, env_steps=20, group=run.group))
    second.log(30, {"rollout/return": 3.0, "a role?": 1.0})
    second.finish(RECORD)
    assert json.loads((run.folder / "tracker.json").read_text())["id"] == run_id
    return run_id


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "gym" / "cartpole" / "first"
    folder.mkdir(parents=True)
    return make_run(folder, runs=tmp_path / "runs", group="seeds")


def test_mlflow_continues_the_same_run_in_a_database_of_all_runs(run):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.tracking import MlflowClient

    run_id = track_and_resume(MlflowTracker, run)
    client = MlflowClient(tracking_uri=f"sqlite:///{run.runs / 'mlflow.db'}")
    tracked = client.get_run(run_id)
    assert client.get_experiment(tracked.info.experiment_id).name == "samara"
    assert (tracked.info.run_name, tracked.info.status) == ("gym/cartpole/first", "FINISHED")
    assert tracked.data.tags["group"] == "seeds"
    assert json.loads(tracked.data.tags["result"]) == RECORD
    assert tracked.data.params == {"acer_config.gamma": "0.9", "base_config.env_wrappers": "[]", "goal": "null"}
    returns = client.get_metric_history(run_id, "rollout/return")
    assert [(metric.step, metric.value) for metric in returns] == [(10, 1), (20, 2), (30, 3)]
    assert tracked.data.metrics["result/evaluation/agent/mean"] == 480.5
    assert tracked.data.metrics["a role_"] == 1


def test_trackio_continues_the_same_run_in_a_folder_of_all_runs(run, monkeypatch, capfd):
    """In a subprocess, since trackio reads its folder when it is imported."""
    pytest.importorskip("trackio", reason="needs the extra trackio")
    code = (
        "from pathlib import Path; from tests.tracking.test_services import *; folder = Path(sys.argv[1]); "
        "track_and_resume(TrackioTracker, make_run(folder, runs=folder.parents[2], group='seeds'))"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, "-c", code, str(run.folder)], check=True)
    assert capfd.readouterr().out == ""
    database = sqlite3.connect(run.runs / "trackio" / "samara.db")
    rows = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
    assert {run_id for run_id, *_ in rows} == {json.loads((run.folder / "tracker.json").read_text())["id"]}
    assert {name for _, name, *_ in rows} == {"gym/cartpole/first"}
    metrics = [(step, json.loads(values)) for *_, step, values in rows]
    returns = [(step, values["rollout/return"]) for step, values in metrics if "rollout/return" in values]
    assert returns == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert (30, 480.5) in [(step, values.get("result/evaluation/agent/mean")) for step, values in metrics]
    assert any("actions/0" in values for _, values in metrics)
    (config,) = database.execute("select config from configs").fetchone()
    assert json.loads(config)["acer_config.gamma"] == 0.9 and json.loads(config)["_Group"] == "seeds"


def test_wandb_continues_the_same_run_in_the_run_folder(run, monkeypatch, capfd):
    """The files of an offline run have the protocol buffers that `wandb sync` uploads."""
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    run_id = track_and_resume(WandbTracker, run)
    wandb.teardown()
    records = [record for path in sorted(run.folder.rglob("*.wandb")) for record in read_wandb(path)]
    started = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {(each.run_id, each.project, each.run_group, each.display_name) for each in started} == {
        (run_id, "samara", "seeds", "gym/cartpole/first")
    }
    logged = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    rows = [{each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items} for items in logged]
    returns = [(row["env_steps"], row["rollout/return"]) for row in rows if "rollout/return" in row]
    assert returns == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert "histogram" in [row.get("actions/0/_type") for row in rows]
    assert capfd.readouterr().out == ""


def read_wandb(path):
    """Yield the records of a file in the format of LevelDB's log: blocks of 32 KiB with pieces of records."""
    from wandb.proto import wandb_internal_pb2

    content, start, record = path.read_bytes(), 7, b""  # after the header of the file
    while start + 7 <= len(content):
        if 32768 - start % 32768 < 7:  # no header of a piece fits into the rest of the block
            start += 32768 - start % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, start)
        record += content[start + 7 : start + 7 + size]
        start += 7 + size
        if kind in (1, 4):  # a whole record, or its last piece
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


@pytest.mark.parametrize(
    ("tracker_class", "package", "needs"),
    [
        (MlflowTracker, "mlflow", "the address of an MLflow server"),
        (TrackioTracker, "trackio", "the address of a Trackio server"),
    ],
)
def test_online_needs_an_address(tracker_class, package, needs, run, monkeypatch):
    pytest.importorskip(package, reason="needs the extra")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=needs):
        tracker_class(make_run(run.folder, online=True))


def test_names_of_metrics_have_characters_that_mlflow_supports():
    assert clean_name("scene/Wall Height [m]/3DBall?team=1") == "scene/Wall Height _m_/3DBall_team_1"
    assert clean_name("rollout/return") == "rollout/return"
