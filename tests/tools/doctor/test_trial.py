"""The start of a run with missing or unsuitable parts, in this process."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from algorithm.cli.parser import parse_arguments
from algorithm.errors import UserError
from algorithm.parts import components_builder as of_memory
from algorithm.tools.doctor import trial
from algorithm.tools.doctor.check import BROKEN, OK
from algorithm.tools.doctor.trial import list_start_checks
from tests.task_folder import NN, write_task

OWN = ("--set", "base_config.env_type=GYM", "base_config.env_name=env.py")


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task."""
    return write_task(
        "default:\n  base_config: {env_type: PROBE, env_name: truncation, n_envs: 3}\n"
        "unity:\n  base_config: {env_type: UNITY, n_envs: 2}\n"
    )


def seen(*words: str) -> dict[str, str]:
    """Return the findings of a trial, up to the first broken one."""
    found = trial.run_trial(vars(parse_arguments(["doctor", "mine/task", *words])[1]))
    broken = {name: line for name, (state, line) in found.items() if state == BROKEN}
    assert list(found) == ["device", "environment", "agent", "replay", "checkpoints"][: len(found)]
    return broken


def test_all_checks_are_ok():
    assert seen() == {}
    assert not Path("runs").exists()


UNSUITABLE = """
from algorithm.auxiliaries.auxiliary import Auxiliary

class Unsuitable(Auxiliary):
    def build(self, agent, role):
        raise ValueError("it needs images")

    def loss(self, inputs):
        ...
"""
OF_UNSUITABLE = ("--set", 'auxiliaries={"unsuitable_auxiliary:Unsuitable": {}}')


@pytest.mark.parametrize(
    ("file", "text", "words", "stage", "line"),
    [
        ("nn.py", NN, ("--device", "cuda:77"), "device", "torch finds no such device"),
        ("env.py", "def make():\n    raise OSError('no licence')\n", OWN, "environment", "no licence"),
        ("nn.py", "blueprint = 1 / 0\n", (), "agent", "nn.py, line 1: ZeroDivisionError"),
        ("unsuitable_auxiliary.py", UNSUITABLE, OF_UNSUITABLE, "agent", "_auxiliary:Unsuitable: it needs images"),
    ],
)
def test_what_does_not_fit_is_broken(file, text, words, stage, line, task, monkeypatch):
    (task / file).write_text(text)
    monkeypatch.syspath_prepend(task)
    wrong = seen(*words)
    assert set(wrong) == {stage} and line in wrong[stage]


def test_auxiliaries_are_built():
    assert seen("--set", "auxiliaries.curiosity.units=8") == {}


def test_a_replay_that_does_not_fit_is_broken(monkeypatch):
    monkeypatch.setattr(of_memory, "measure_free_memory", lambda: 10**5)
    wrong = seen()
    assert set(wrong) == {"replay"} and "of memory are free; at most" in wrong["replay"]


def test_checkpoints_that_do_not_fit_on_the_disk_are_broken(monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=5 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert trial._check_disk(10**6, kept=3) == "at most 5 of 1 MB, 5 MB are free"
    with pytest.raises(UserError, match=r"^6 of 1 MB do not fit on the disk, 5 MB are free: lower "):
        trial._check_disk(10**6, kept=4)
    assert set(seen()) == {"checkpoints"}


def of_scene(*words: str) -> dict[str, tuple[str, str]]:
    """Return the findings about a scene's player and ports, without the handshake and the packages."""
    checks = list(list_start_checks(parse_arguments(["doctor", "mine/task", "-c", "unity", *words])[1]))
    names = [check.name for check in checks]
    assert names[:2] == ["device", "handshake"]
    found = [check() for check in checks[2:]]
    return {finding.name: (finding.state, finding.line) for finding in found}


@contextmanager
def take_port() -> Iterator[int]:
    """Listen on a port within a block."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_player_that_is_missing_or_not_executable_and_a_taken_port_are_broken(tmp_path):
    player = tmp_path / "scene.x86_64"
    words = ["--set", f"base_config.unity_args.build_path={player.as_posix()}"]
    assert of_scene(*words)["player"][1].startswith(f"there is no player at {player}: ")
    player.write_text("")
    if os.name == "posix":
        assert of_scene(*words) == {"player": (BROKEN, f"{player} is not executable: run chmod +x on it")}
    player.chmod(0o755)
    assert of_scene(*words) == {"player": (OK, str(player))}
    with take_port() as port:
        state, line = of_scene(*words, "-p", str(port - 2))["ports"]  # the third is for evaluation
        assert state == BROKEN and line.startswith(f"{port} is taken by ") and "base_port" in line
    state, line = of_scene(*words, "-p", "65534")["ports"]
    assert state == BROKEN and line.startswith("65536 is not a valid port")


def test_the_editor_has_one_port():
    with take_port() as port:
        state, line = of_scene("--agents", "1", "-p", str(port))["ports"]
    assert state == BROKEN and line.endswith("give --port, and set it in Unity too")


@pytest.mark.parametrize("variant", ["default", "unity"])
def test_a_run_that_exports_checks_the_packages_and_a_round_trip(variant):
    def names(export: str) -> list[str]:
        words = ["doctor", "mine/task", "-c", variant, "--agents", "1", "--set", f"base_config.export={export}"]
        return [check.name for check in list_start_checks(parse_arguments(words)[1])]

    never = names("never")
    assert not any("onnx" in name for name in never)
    for export in ("end", "checkpoints"):
        assert [name for name in names(export) if name not in never] == ["extra onnx", "onnx round trip"]
