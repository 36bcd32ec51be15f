"""Places and names of run folders."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder, find_environment_folder, format_run_name
from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "envs" / "some" / "task"
    source.mkdir(parents=True)
    (source / "config.yaml").write_text("default: {}\n")
    (source / "nn.py").write_text("from algorithm.networks import Blueprint\nblueprint = Blueprint()\n")
    return RunFolder.create("some/task", source, "a", resolve([]).tree)


@pytest.mark.parametrize("pattern", ["x_{time}", "x_<time>"])
def test_the_start_time_is_inserted_into_the_name(pattern):
    start = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    assert format_run_name(pattern, start) == "x_20260304-050607"


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\\b", "a:b", ".hidden"])
def test_a_name_must_be_a_plain_folder_name(name):
    with pytest.raises(UserError, match="plain folder name"):
        format_run_name(name, 0)


def test_the_working_directory_is_searched_before_the_project(tmp_path, folder):
    assert find_environment_folder("some/task").resolve() == tmp_path / "envs" / "some" / "task"
    assert find_environment_folder("gym/cartpole").is_absolute()
    with pytest.raises(UserError, match=r"no environment folder 'gym/cartpol'.*gym/cartpole"):
        find_environment_folder("gym/cartpol")


def test_a_run_is_not_overwritten(tmp_path, folder):
    with pytest.raises(UserError, match="exists already"):
        RunFolder.create("some/task", tmp_path / "envs" / "some" / "task", "a", {})


def test_the_latest_run_is_found_without_a_name(folder):
    assert RunFolder.find("some/task", None).path == folder.path
    assert RunFolder.find("some/task", "a").path == folder.path
    with pytest.raises(UserError, match="no run 'b'.*the runs are: a"):
        RunFolder.find("some/task", "b")
    with pytest.raises(UserError, match="no run under"):
        RunFolder.find("some/other", None)


def test_roles_are_read_back_as_they_were_written(folder):
    gear = ActionPart("gear", (2,), "int64", n_values=(4, 2), start=(1, 0))
    gas = ActionPart("gas", (1,), "float32", low=(-0.1,), high=(1.0,))
    observed = {"obs": ObsSpec((3,), "uint8"), "place": ObsSpec((5,), "uint8", env_shape=(), n_values=(5,), start=(1,))}
    one = Role(2, observed, ActionSpec.from_parts([gear, gas]))
    two = Role(1, {"eye": ObsSpec((2, 2))}, ActionSpec(continuous=2))
    folder.add_role("one", one)
    folder.add_role("two", two)
    again = RunFolder(folder.path)
    assert folder.read_roles() == again.read_roles() == {"one": one, "two": two}
    assert list(again.read_roles()) == ["one", "two"]
    places = Role(1, {"obs": ObsSpec((1,))}, ActionSpec.from_parts([replace(gear, key=0), replace(gas, key=1)]))
    folder.add_role("three", places)
    assert isinstance(
        RunFolder(folder.path).read_roles()["three"].action_spec.to_env_units(np.zeros((1, 3), np.float32)), tuple
    )


def test_roles_of_another_version_are_an_error_of_one_line(folder):
    old = {"lanes": 2, "obs_specs": {"obs": {"shape": [3], "dtype": "uint8"}}}
    old["action_spec"] = {"continuous": 0, "branches": [4], "start": [1]}
    (folder.path / "roles.json").write_text(json.dumps({"agent": old}))
    with pytest.raises(
        UserError, match="roles.json is damaged .*agent.action_spec.* of another version.*--resume writes it again"
    ):
        folder.read_roles()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = 1", "expected `blueprint`"),
        ("blueprint = 3", "expected `blueprint`"),
        ("def blueprint(units): ...", "nn_config does not fit"),
    ],
)
def test_an_invalid_nn_is_an_error_that_names_it(folder, code, message):
    (folder.path / "nn.py").write_text(code)
    with pytest.raises(UserError, match=message) as error:
        folder.load_blueprint("nn.py", {})
    assert "nn.py" in str(error.value)


def test_a_blueprint_may_be_a_function_of_nn_config(folder):
    (folder.path / "nn.py").write_text(
        "from algorithm.networks import Blueprint, Mlp\ndef blueprint(units): return Blueprint(body=Mlp(units))\n"
    )
    assert folder.load_blueprint("nn.py", {"units": 5}).body.units == (5,)
