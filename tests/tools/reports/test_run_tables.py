"""The tables of a report: spaces, settings, sessions, evaluations."""

from __future__ import annotations

from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role
from algorithm.tools.reports.page import MAX_VALUE, format_setting
from algorithm.tools.reports.report_files import make_report
from algorithm.tools.reports.run_data import read_run
from algorithm.tools.reports.run_summary import (
    list_commands,
    list_environment,
    list_machine,
    list_spaces,
    list_versions,
)
from tests.builders import make_role
from tests.tools.reports.run_folders import PageReader


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
    assert [format_setting(value) for value in (None, [1, "x"], True)] == ["null", "[1, x]", "true"]
    assert format_setting("y" * 1000) == "y" * MAX_VALUE + " ..."
    address = "https://me:" + "secret" * 50 + "@host"  # whose password is longer than what is shown
    assert format_setting(address) == "https://***@host"
    assert format_setting("x" * 290 + address) == "x" * 290 + "https://**" + " ..."


def test_the_newest_evaluations_are_listed(tmp_path):
    lines = [f"{k},{k / 2}" for k in range(1, 16)]
    (tmp_path / "metrics.csv").write_text("\n".join(["env_steps,eval/return/red", *lines, ""]))
    text = PageReader(make_report(read_run(tmp_path))).text
    assert "red env steps mean return 4 2.000 5 2.500" in text and "15 7.500 3 older rows are left out." in text


def test_properties_that_are_not_known_are_left_out(tmp_path):
    run = read_run(tmp_path)
    assert list_machine(run) == [] and list_versions(run) == []
    assert "Processes that have trained" not in make_report(run)
    session = {"env_steps": 0, "machine": {"cores": 2, "processor": None, "memory": None}, "versions": {"torch": "2"}}
    run.sessions, run.record = [session], {**run.record, "seed": 0}
    assert list_machine(run) == [("cores", "2")]
    assert list_versions(run) == [("torch", "2"), ("seed", "0")]
    assert "started processor commit from env step to - - - 0 0" in PageReader(make_report(run)).text


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
