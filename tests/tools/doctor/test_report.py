"""The command doctor in environments with missing packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.tools.doctor import command, installation
from tests.task_folder import write_task
from tests.tools.doctor.test_trial import take_port

ROOT = Path(__file__).resolve().parents[3]
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
        "default:\n  base_config: {env_type: PROBE, env_name: truncation, n_envs: 3}\n"
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
