"""Runs that are damaged, that contain code, or that refer to files outside of their folder."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from algorithm.checkpointing.checkpoint import Manifest
from algorithm.config import registry
from algorithm.parts.run_folder import RunFolder
from algorithm.training.metrics import read_table
from tests.command_line import train_once
from tests.task_folder import NN, TRUNCATION, write_task

EVIL = f"from pathlib import Path\nPath('evil').touch()\n{NN}"
RESUME = "mine/task --resume --max_step 150"


@pytest.fixture
def task():
    """Create the folder mine/task."""
    return write_task(TRUNCATION)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of runs after the training of mine/task/a."""
    return train_once(tmp_path_factory, "mine/task -n a", lambda: write_task(TRUNCATION)) / "runs"


@pytest.fixture
def run(task, trained):
    """Copy the run mine/task/a."""
    shutil.copytree(trained, "runs")
    return RunFolder.find("mine/task", "a")


def harm(path: Path) -> None:
    path.write_bytes(b"\xff" + path.read_bytes()[:-3])


def harm_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-6] + b"\xff" + content[-5:])


HARM = {
    "roles.json damaged": (lambda run: harm(run / "roles.json"), "roles.json is damaged ("),
    "roles.json missing": (lambda run: (run / "roles.json").unlink(), "roles.json is missing: it is written again"),
    "configs damaged": (lambda run: harm(run / "configs" / f"{0:012d}.yaml"), f"damaged-{0:012d}.yaml"),
    "configs missing": (lambda run: shutil.rmtree(run / "configs"), "configs has no settings to compare with"),
    "metrics.csv damaged": (lambda run: harm_byte(run / "metrics.csv"), "1 of its lines are dropped"),
    "metrics.csv missing": (lambda run: (run / "metrics.csv").unlink(), "metrics.csv is missing: the metrics of this"),
    "best.json damaged": (lambda run: (run / "checkpoints" / "best.json").write_text("{"), "best.json is damaged"),
    "result.json damaged": (lambda run: harm(run / "result.json"), ""),
}


@pytest.mark.parametrize(("damage", "expected"), HARM.values(), ids=HARM)
def test_a_damaged_file_is_logged_and_written_again_by_resume(run, damage, expected, command):
    damage(run.path)
    out, err = command(RESUME)
    assert err == ""
    assert len([line for line in out.splitlines() if expected in line]) == 1 or not expected
    assert "base_config.max_step: 90 -> 150" in out or "configs" in expected or "damaged-0" in expected
    assert list(run.read_roles()) == ["agent"]
    assert run.read_last_settings() == run.load_settings().tree and run.load_settings().base.max_step == 150
    assert json.loads((run.path / "result.json").read_text())["env_steps"] == 150
    table = read_table(run.path / "metrics.csv")
    assert table.damaged == 0 and table.rows[-1]["env_steps"] == "150"
    assert (run.path / "curve.png").is_file() == ("curve" in registry.RUN_TOOLS)
    again = command("mine/task --resume --max_step 180").out
    assert "damaged" not in again and "missing" not in again


@pytest.mark.parametrize("name", ["roles.json", "metrics.csv", "result.json", "configs/000000000000.yaml"])
def test_a_run_can_be_played_without_its_records(run, name, command):
    harm(run.path / name)
    command("mine/task --run")
    (run.path / name).unlink()
    command("mine/task --run")


def test_a_command_that_needs_a_missing_record_names_it(run, command):
    harm(run.path / "roles.json")
    error = command.fail("export mine/task")
    assert "roles.json is damaged" in error and "--resume" in error
    (run.path / "roles.json").unlink()
    assert "roles.json has no role 'agent': --resume writes it again" in command.fail("export mine/task")


def spoil(folder: Path, number: float) -> None:
    """Replace a number in the weights of a checkpoint, whose manifest stays valid."""
    manifest = Manifest.read(folder)
    state = torch.load(folder / "agent" / "weights.pt", weights_only=True)
    next(iter(state["parameters"].values()))[3] = number
    memory = io.BytesIO()
    torch.save(state, memory)
    with manifest.open_file("agent/weights.pt") as file:
        file.write(memory.getbuffer())
    manifest.write()


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_rejected(run, number, command):
    *_, before, last = sorted((run.path / "checkpoints").glob("0*"))
    spoil(last, number)
    for line in ("mine/task --run", RESUME, "export mine/task", "mine/task --run --ckpt 90"):
        err = command.fail(line, 1)
        assert err.startswith(str(last / "agent" / "weights.pt"))
        assert "holds NaN or infinity" in err and "--ckpt" in err and f"move {last} out" in err
    command(f"mine/task --run --ckpt {int(before.name)}")
    last.rename("elsewhere")
    command(RESUME)


def test_a_requested_checkpoint_that_is_damaged_or_outside_of_the_run_folder_is_rejected(run, command):
    inside, outside = run.path / "checkpoints" / f"{60:012d}", Path("elsewhere")
    command(f"mine/task --run --ckpt {inside}")
    command(f"mine/task --run --ckpt runs/mine/task/a/checkpoints/{60:012d}")
    shutil.copytree(inside, outside)
    (run.path / "checkpoints" / f"{70:012d}").symlink_to(outside.absolute())
    for which in ("elsewhere", outside.absolute(), f"{inside}/../../../../../../elsewhere", 70):
        err = command.fail(f"mine/task --run --ckpt {which}")
        assert err.startswith(f"--ckpt {which}: ") and "elsewhere is outside of" in err
    command("mine/task --run")  # the link is not the newest checkpoint
    best = run.path / "checkpoints" / "best.json"
    best.write_text('{"checkpoint": "../../../../../elsewhere", "return": 1.0}')
    out = command("mine/task --run").out
    assert "best.json is damaged ('../../../../../elsewhere' is no checkpoint of this run)" in out
    weights = run.path / "checkpoints" / f"{60:012d}" / "agent" / "weights.pt"
    harm(weights)
    assert command.fail("mine/task --run --ckpt 60", 1).startswith(f"{weights} is damaged")


@pytest.mark.parametrize("setting", ["nn", "env_name"])
def test_code_outside_of_the_run_folder_is_rejected(run, setting, command):
    Path("evil.py").write_text(EVIL)
    (run.path / "link.py").symlink_to(Path("evil.py").absolute())
    text = run.config_file.read_text()
    if setting == "env_name":
        text = text.replace("env_type: PROBE", "env_type: GYM")
    for name in ("../../../../evil.py", Path("evil.py").absolute(), "link.py"):
        lines = [f"  {setting}: {name}" if line.startswith(f"  {setting}: ") else line for line in text.splitlines()]
        run.config_file.write_text("\n".join(lines))
        (run.path / "configs" / f"{0:012d}.yaml").unlink(missing_ok=True)
        for mode in ("--run", "--resume"):
            err = command.fail(f"mine/task {mode}")
            assert err.startswith(f"base_config.{setting}: {name} is not allowed: ") and "is outside of" in err
    assert not Path("evil").exists()


def test_code_outside_of_the_environment_folder_is_rejected_for_a_new_run(task, command):
    Path("evil.py").write_text(EVIL)
    assert "base_config.nn: ../../../evil.py is not allowed" in command.fail("mine/task -n a --nn ../../../evil.py")
    assert not Path("evil").exists() and not Path("runs").exists()


def test_code_of_a_run_that_differs_from_the_environments_is_reported(run, task, command):
    lines = ("mine/task --run", "mine/task --resume", "export mine/task")
    for line in lines:
        assert "executes its own" not in command(line).out
    (task / "nn.py").write_text(f"{NN}# newer\n")
    (run.path / "more.py").write_text("")
    for line in lines:
        reported = [shown for shown in command(line).out.splitlines() if "executes its own" in shown]
        assert reported == [f"runs/mine/task/a executes its own more.py, nn.py, other code than in {task}"]
    assert f"its own more.py, other code than in {task}" in command("mine/task --run --use_env_nn").out
    shutil.rmtree("envs")
    expected = "executes its own more.py, nn.py, and no environment folder mine/task has such code"
    assert expected in command("mine/task --run").out
