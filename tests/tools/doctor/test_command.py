"""The command doctor in environments with missing packages, and its checks of the start of a run."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.cli.parser import parse_arguments
from algorithm.errors import UserError
from algorithm.parts import components_builder
from algorithm.tools.doctor import command, installation, trial
from algorithm.tools.doctor.check import BROKEN, OK
from algorithm.tools.doctor.trial import list_start_checks
from tests.task_folder import NN, write_task

ROOT = Path(__file__).resolve().parents[3]
OWN = ("--set", "base_config.env_type=GYM", "base_config.env_name=env.py")
STATES = {"ok", "missing", "broken", "timeout"}
SMALL_SETUP = """
from setuptools import find_packages, setup
setup(
    python_requires=">=3.10",
    packages=find_packages(),
    install_requires=["numpy>=2"],
    extras_require={"mujoco": ["numpy"], "nowhere": ["surely-not-there"], "test": ["pytest"], "onnx": ONNX},
)
"""


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task, which needs the packages of the core only."""
    return write_task(
        "default:\n  base_config: {env_type: PROBE, suggest_settings: false, env_name: truncation, n_envs: 3}\n"
        "unity:\n  base_config: {env_type: UNITY, n_envs: 1}\n"
    )


@pytest.fixture
def little(monkeypatch):
    """Leave out the checks of the core and the machine, which are tested separately."""
    monkeypatch.setattr(command, "list_core_checks", lambda: [])
    monkeypatch.setattr(command, "MACHINE_CHECKS", ())


@pytest.fixture
def hide(monkeypatch, tmp_path):
    """Return a function that hides a package, and its module from the processes of the checks."""
    find_version = installation._find_version

    def hide_package(package: str, module: str) -> None:
        error = f"raise ModuleNotFoundError(\"No module named '{module}'\", name={module!r})\n"
        (tmp_path / f"{module}.py").write_text(error)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(installation, "_find_version", lambda name: find_version(name) if name != package else None)

    return hide_package


@contextmanager
def take_port() -> Iterator[int]:
    """Listen on a port within a block."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def call(capsys, *arguments) -> dict:
    """Return the JSON for a script, after a check of its form."""
    status = main.main(["doctor", *arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document.pop("status") == status
    assert status == (1 if "error" in document else 0)
    assert all(set(check) == {"name", "state", "line"} and check["state"] in STATES for check in document["checks"])
    assert all(check["line"] and "\n" not in check["line"] for check in document["checks"])
    return document


def broken(document: dict) -> dict[str, str]:
    return {check["name"]: check["line"] for check in document["checks"] if check["state"] == "broken"}


def test_a_folder_whose_requirements_are_installed_is_ok(capsys, monkeypatch):
    monkeypatch.setattr(command, "list_core_checks", lambda: [])  # which are tested separately
    assert main.main(["doctor", "mine/task"]) == 0
    *checks, last = capsys.readouterr().out.splitlines()
    assert last == "all that mine/task needs is there"
    names = "python devices threads disk memory device environment agent replay checkpoints"
    assert [line.split()[:2] for line in checks] == [[name, "ok"] for name in names.split()]
    assert not Path("runs").exists()


def test_an_extra_that_was_not_requested_is_no_failure(capsys, monkeypatch, tmp_path):
    onnx = installation.read_setup()["extras_require"]["onnx"]
    (tmp_path / "setup.py").write_text(f"ONNX = {onnx!r}\n{SMALL_SETUP}")
    document = installation.read_setup.__wrapped__
    monkeypatch.setattr(installation, "SETUP_FILE", tmp_path / "setup.py")
    monkeypatch.setattr(installation, "read_setup", document)
    monkeypatch.setattr(command, "MACHINE_CHECKS", ())
    document = call(capsys)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert document["environment"] is None
    assert states["extra nowhere"] == "missing" and states["extra mujoco"] == "ok"
    assert states["handshake"] == "ok" and "extra test" not in states
    assert states["onnx round trip"] == ("ok" if states["extra onnx"] == "ok" else "missing")


@pytest.mark.usefixtures("little")
def test_without_mlagents_and_with_another_program_on_the_port(hide, capsys, monkeypatch):
    core = [check for check in installation.list_core_checks() if check.name == "mlagents-envs"]
    monkeypatch.setattr(command, "list_core_checks", lambda: core)
    hide("mlagents-envs", "mlagents_envs")
    with take_port() as port:
        document = call(capsys, "mine/task", "-c", "unity", "-p", str(port))
    wrong = broken(document)
    assert set(wrong) == {"mlagents-envs", "handshake", "ports"}
    assert wrong["mlagents-envs"] == "pip install -e . (not installed: mlagents-envs)"
    assert wrong["handshake"].endswith("is missing (No module named 'mlagents_envs'): pip install -e .")
    assert wrong["ports"].startswith(f"{port} is taken by ")
    assert document["error"].startswith("broken: mlagents-envs, handshake, ports; ")


@pytest.mark.usefixtures("little")
def test_without_onnx_a_run_that_exports_is_reported(hide, capsys):
    hide("onnxruntime", "onnxruntime")
    document = call(capsys, "mine/task", "--set", "base_config.export=end")
    line = 'pip install -e ".[onnx]" (not installed: onnxruntime)'
    assert broken(document) == {"extra onnx": line, "onnx round trip": line}


def test_without_packages_of_the_core_the_report_is_written(tmp_path):
    for name in ("rich", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is crippled')")
    code = (
        "import sys\nfrom algorithm.cli import main\nfrom algorithm.tools.doctor import command\n"
        "core = [check for check in command.list_core_checks() if check.name in ('rich', 'packaging')]\n"
        "command.MACHINE_CHECKS, command.list_core_checks = (), lambda: core\n"
        "sys.exit(main.main(['doctor', 'mine/task']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    states = [("rich", "broken"), ("packaging", "ok"), ("settings", "broken")]
    assert [tuple(line[:2]) for line in lines] == states
    assert "rich is crippled" in lines[0][2] and "torch is crippled" in lines[2][2]
    assert done.stderr == "broken: rich, settings; the lines above say what to do\n"


def test_an_environment_that_ends_its_process_is_reported(capsys, little, task):
    (task / "env.py").write_text("import os\ndef make():\n    os._exit(5)\n")
    document = call(capsys, "mine/task", "--set", "base_config.env_type=GYM", "base_config.env_name=env.py")
    assert broken(document) == {"device": "the start of a run fails: it ended with exit code 5"}
    assert [check["state"] for check in document["checks"]] == ["broken", *["missing"] * 4]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("doctor nobody/knows", "no environment folder 'nobody/knows'"),
        ("doctor mine/task --set base_config.nope=1", "unknown setting base_config.nope"),
        ("doctor mine/task -c nope", "no variant 'nope'"),
        ("doctor mine/task -c unity --agents 2", "base_config.n_envs is 2, but there is only one Unity editor"),
        ("doctor mine/task --port 5004", "--port: base_config.unity_args.base_port is for env_type UNITY"),
        ("doctor --device cpu", "--device needs an environment folder"),
        ("doctor --list", "--list is a command now: python main.py list"),
    ],
)
def test_an_invalid_command_has_status_2(capsys, words, line):
    assert main.main(words.split()) == 2
    shown = capsys.readouterr()
    assert line in shown.err and shown.err.count("\n") == 1 and shown.out == ""


# The start of a run.


def seen(*words: str) -> dict[str, str]:
    """Return the findings of a trial, up to the first broken one."""
    found = trial.run_trial(vars(parse_arguments(["doctor", "mine/task", *words])[1]))
    broken = {name: line for name, (state, line) in found.items() if state == BROKEN}
    assert list(found) == ["device", "environment", "agent", "replay", "checkpoints"][: len(found)]
    return broken


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
    monkeypatch.setattr(components_builder, "measure_free_memory", lambda: 10**5)
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
    _, options = parse_arguments(["doctor", "mine/task", "-c", "unity", "--agents", "2", *words])
    device, handshake, *checks = list_start_checks(options)
    assert (device.name, handshake.name) == ("device", "handshake")
    found = [check() for check in checks]
    return {finding.name: (finding.state, finding.line) for finding in found}


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
        state, line = of_scene("--agents", "1", "-p", str(port))["ports"]  # the editor has one
        assert state == BROKEN and line.endswith("give --port, and set it in Unity too")
    state, line = of_scene(*words, "-p", "65534")["ports"]
    assert state == BROKEN and line.startswith("65536 is not a valid port")


@pytest.mark.parametrize("variant", ["default", "unity"])
def test_a_run_that_exports_checks_the_packages_and_a_round_trip(variant):
    def names(export: str) -> list[str]:
        words = ["doctor", "mine/task", "-c", variant, "--agents", "1", "--set", f"base_config.export={export}"]
        return [check.name for check in list_start_checks(parse_arguments(words)[1])]

    never = names("never")
    assert not any("onnx" in name for name in never)
    for export in ("end", "checkpoints"):
        assert [name for name in names(export) if name not in never] == ["extra onnx", "onnx round trip"]
