"""The tables of a report: spaces, settings, sessions, evaluations."""

from __future__ import annotations

from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role
from algorithm.tools.reports.run_data import Difference, make_metrics, read_run
from algorithm.tools.reports.run_tables import (
    MAX_ROWS,
    MAX_VALUE,
    list_commands,
    list_environment,
    list_evaluations,
    list_machine,
    list_sessions,
    list_spaces,
    list_versions,
    make_differences,
)
from algorithm.training.metrics import read_table
from tests.builders import make_role


def test_spaces_of_every_kind():
    parts = (
        ActionPart(key="gear", shape=(), dtype="int64", n_values=(3,)),
        ActionPart(key="throttle", shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 2.0)),
    )
    specs = {
        "picture": ObsSpec((3, 8, 8), "uint8", high=255.0),
        "place": ObsSpec((7,), n_values=(3, 4)),
    }
    role = Role(1, specs, ActionSpec.from_parts(parts))
    (table,) = list_spaces({"car": role})
    assert table.title == "car: 1 agent"
    assert table.rows == [
        ["observation", "picture", "3 x 8 x 8", "uint8", "0 to 255"],
        ["observation", "place", "7", "float32", "one of 3 x 4, one-hot"],
        ["action", "gear", "scalar", "int64", "one of 3"],
        ["action", "throttle", "2", "float32", "-1 to 2"],
    ]
    (table,) = list_spaces({"agent": make_role(4)})
    assert table.title == "4 agents" and table.rows[-1][0] == "action"


def test_long_values_are_cut_and_values_have_the_form_of_yaml():
    differences = [
        Difference(path="a.b", before=None, after=[1, "x"]),
        Difference(path="a.c", before=True, after="y" * 1000),
    ]
    address = "https://me:" + "secret" * 50 + "@host"  # whose password is longer than what is shown
    differences.append(Difference(path="a.d", before="x" * 290 + address, after=address))
    (first, second, third) = make_differences(differences).rows
    assert third == ["a.d", "https://***@host", "x" * 290 + "https://**" + " ..."]
    assert first == ["a.b", "[1, x]", "null"]
    assert second == ["a.c", "y" * MAX_VALUE + " ...", "true"]


def test_the_newest_evaluations_are_listed(tmp_path):
    lines = [f"{k},{k / 2}" for k in range(1, MAX_ROWS + 4)]
    (tmp_path / "metrics.csv").write_text("\n".join(["env_steps,eval/return/red", *lines, ""]))
    (table,) = list_evaluations(make_metrics(read_table(tmp_path / "metrics.csv"), {}))
    assert (table.title, table.columns, table.left_out) == ("red", ["env steps", "mean return"], 3)
    assert len(table.rows) == MAX_ROWS and table.rows[-1] == ["15", "7.500"]


def test_properties_that_are_not_known_are_left_out(tmp_path):
    run = read_run(tmp_path)
    assert list_machine(run) == [] and list_versions(run) == [] and list_sessions(run).rows == []
    session = {"env_steps": 0, "machine": {"cores": 2, "processor": None, "memory": None}, "versions": {"torch": "2"}}
    run.sessions, run.record = [session], {**run.record, "seed": 0}
    assert list_machine(run) == [("cores", "2")]
    assert list_versions(run) == [("torch", "2"), ("seed", "0")]
    assert list_sessions(run).rows == [["-", "-", "-", "0", "0"]]


def test_settings_of_other_runtimes_are_left_out(tmp_path):
    base = {"env_type": "GYM", "env_name": "A-v1", "n_envs": 2, "n_workers": 4, "env_args": {}}
    run = read_run(tmp_path)
    run.settings = {"base_config": {**base, "runtime": "RAY"}, "cluster_config": {"actors": 3}}
    assert dict(list_environment(run)) == {
        "env_type": "GYM",
        "env_name": "A-v1",
        "n_envs": "2",
        "runtime": "RAY",
        "actors": "3",
    }
    run.settings = {"base_config": {**base, "runtime": "workers"}}
    assert dict(list_environment(run))["n_workers"] == "4"


def test_commands_quote_names_with_spaces(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    commands = dict(list_commands(read_run(folder)))
    assert commands["resume it"].endswith("-n 'a b' --resume")
