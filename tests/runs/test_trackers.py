"""The trackers of runs: missing packages, failures, names, groups, histograms, and the metrics that the guide lists."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from algorithm import Callback, train
from algorithm.config import registry
from algorithm.errors import UserError
from algorithm.population.members import make_member_tree
from algorithm.runs.run_requests import RunRequest, plan_runs
from algorithm.tracking.trackers import Tracker
from algorithm.training.metrics import read_table

SHORT = {"base_config.max_step": 300, "base_config.log_every": 100, "base_config.save_every": 100, "goal": None}
TRACKED = {**SHORT, "base_config.tracker": "mlflow"}


class FakeService(Tracker):
    """A service in memory, which fails when the test requests it."""

    runs: ClassVar[list] = []
    fails_to_open = False

    def __init__(self, run):
        if FakeService.fails_to_open:
            raise ConnectionError("the server does not answer")
        self.run, self.rows, self.results, self.histograms = run, [], [], {}
        self.run_id = run.read_id("mlflow") or f"id-{len(self.runs)}"
        run.write_id("mlflow", self.run_id)
        self.runs.append(self)

    def log(self, env_steps, values):
        self.rows.append((env_steps, values))

    def log_histograms(self, env_steps, values):
        self.histograms = values

    def finish(self, record):
        self.results.append(record)


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setitem(registry.TABLES["tracker"], "mlflow", f"{__name__}:FakeService")
    monkeypatch.setattr(FakeService, "runs", [])
    monkeypatch.setattr(FakeService, "fails_to_open", False)
    return FakeService


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_one_line_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.tracking", None)
    with pytest.raises(UserError, match=rf"base_config.tracker {name} needs its packages .*pip install .*\[{name}\]"):
        train("gym/cartpole", name="a", settings={**SHORT, "base_config.tracker": name})


def test_a_tracker_receives_names_settings_rows_and_the_result(service):
    server = {"mode": "online", "address": "https://me:secret@host", "project": "mine"}
    settings = {**TRACKED, **{f"tracker_config.{name}": value for name, value in server.items()}}
    result = train("gym/cartpole", name="a", settings=settings)
    (tracker,) = service.runs
    run = tracker.run
    assert (run.name, run.project, run.group, run.online) == ("gym/cartpole/a", "mine", None, True)
    assert run.address == server["address"] and "https://***@host" in run.config and "secret" not in run.config
    assert run.settings["acer_config.learning_rate"] > 0 and tracker.histograms == {}
    sections = {path.partition(".")[0] for path in run.settings}
    assert not sections & {"sac_config", "ppo_config", "cluster_config", "tune", "population_config"}
    table = read_table(result.folder / "metrics.csv").rows
    rows = [{name: float(value) for name, value in row.items() if value} for row in table]
    assert [{"env_steps": step, **values} for step, values in tracker.rows] == rows
    (ended,) = tracker.results
    assert ended.items() <= json.loads((result.folder / "result.json").read_text()).items()


def test_a_resumed_run_continues_in_the_tracker(service):
    train("gym/cartpole", name="a", settings=TRACKED)
    train("gym/cartpole", name="a", resume=True, settings={"base_config.max_step": 500})
    first, second = service.runs
    assert first.run_id == second.run_id
    assert second.run.env_steps == first.rows[-1][0]
    assert second.rows[0][0] > first.rows[-1][0]


def test_a_tracker_that_does_not_open_ends_a_new_run_and_not_a_resumed_one(service):
    service.fails_to_open = True
    with pytest.raises(UserError, match="the tracker mlflow cannot be opened: ConnectionError: the server does not"):
        train("gym/cartpole", name="a", settings=TRACKED)
    service.fails_to_open = False
    train("gym/cartpole", name="a", settings=TRACKED)
    lines = []
    service.fails_to_open = True
    result = train("gym/cartpole", name="a", resume=True, settings={"base_config.max_step": 500}, log=lines.append)
    assert result.counters.env_steps >= 500
    assert len([line for line in lines if "the tracker mlflow has failed" in line]) == 1


def test_a_run_that_a_callback_ends_by_an_error_is_kept_with_its_status(service):
    class Failing(Callback):
        def on_checkpoint(self, checkpoint):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train("gym/cartpole", name="a", settings=TRACKED, callbacks=[Failing()])
    record = json.loads(Path("runs/gym/cartpole/a/result.json").read_text())
    assert record["status"] == 1 and "ZeroDivisionError: mine" in record["failure"]
    assert [ended["status"] for ended in service.runs[0].results] == [1]


@pytest.mark.parametrize(
    ("repeat", "tree", "groups"),
    [
        (None, {}, [("seeds", None)]),
        (2, {}, [("seeds-1", "seeds"), ("seeds-2", "seeds")]),
        (2, {"tracker_config": {"group": "own"}}, [("seeds-1", "own"), ("seeds-2", "own")]),
        (None, {"population_config": {"size": 2}}, [("seeds", "seeds")]),
    ],
)
def test_repeated_runs_and_members_have_the_group_of_their_common_name(repeat, tree, groups):
    layer = {"base_config": {"name": "seeds", "tracker": "mlflow"}, **tree}
    planned = plan_runs(RunRequest(env="gym/cartpole", repeat=repeat, layers=[("test", layer)]))
    assert [(name, settings.tracker.group) for name, settings in planned] == groups
    member = make_member_tree(planned[0][1].tree, 2, {})
    assert member["tracker_config"]["group"] == groups[0][1]


def test_histograms_of_actions_and_weights(service):
    train("gym/pendulum", name="a", settings={**TRACKED, "base_config.histograms": ["actions", "weights"]})
    (tracker,) = service.runs
    actions = tracker.histograms["actions/0"]
    assert len(actions) > 1 and abs(actions).max() <= 1
    weights = {name: values for name, values in tracker.histograms.items() if name.startswith("weights/acer/")}
    assert len(weights) >= 6 and all(values.ndim == 1 for values in weights.values())
    events = EventAccumulator(str(tracker.run.folder / "tensorboard")).Reload()
    assert {"actions/0", *weights} <= set(events.Tags()["histograms"])
