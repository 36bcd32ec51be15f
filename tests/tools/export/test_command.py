"""The command export and the setting `export`, from the command line to the files."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import torch
import yaml

from algorithm import program
from algorithm.tools.export import export, graph
from tests.task_folder import write_task
from tests.unity_player.launcher import make_player

QUICK = {"rollout_length": 8, "sequence_length": 12, "batch_size": 4, "learning_starts": 32, "replay_ratio": 2}
NN = "from algorithm.networks import Blueprint, Gru, Mlp\nblueprint = Blueprint(body=Mlp(8){})\n"
TRAIN, EXPORT = "mine/task -n a", "export mine/task -n a"
RUN = Path("runs/mine/task/a")


@pytest.fixture
def task():
    """Create the folder mine/task: CartPole with a small network."""
    return write_folder("mine/task", {"env_type": "GYM", "env_name": "CartPole-v1", "n_envs": 2, "max_step": 300})


@pytest.fixture
def trained(task, command):
    """Train the run a in the folder mine/task."""
    command(TRAIN)


def write_folder(name: str, base: dict, memory: str = "") -> Path:
    tree = {"base_config": base, "replay_config": {"capacity": 2000}, "acer_config": QUICK}
    return write_task(yaml.safe_dump({"default": tree}), name, NN.format(memory))


def test_a_run_of_gymnasium_is_exported(task, command):
    command(f"{TRAIN} --set base_config.save_every=150")
    (one,) = command.json(EXPORT)["exports"]
    assert (one["role"], one["path"], one["opset"]) == ("agent", "runs/mine/task/a/agent.onnx", 15)
    assert one["inputs"] == {"obs_0": ["batch", 4], "action_masks": ["batch", 2]}
    assert one["size"] == Path(one["path"]).stat().st_size and one["parity"] < 1e-4

    first = int(min(path.name for path in (RUN / "checkpoints").iterdir()))
    shown = command(f"export mine/task --format barracuda --ckpt {first}").out
    assert "agent.onnx: " in shown and "opset 9; inputs obs_0 [batch, 4], action_masks [batch, 2]; outputs" in shown
    model = onnx.load(one["path"])
    assert model.opset_import[0].version == 9
    assert {entry.key: entry.value for entry in model.metadata_props}["env_steps"] == str(first)


@pytest.mark.usefixtures("prepared_scenes")
def test_every_behavior_of_a_scene_is_exported_under_its_name(tmp_path, command):
    player = {"build_path": str(make_player(tmp_path, "two_behaviors")), "timeout_wait": 20}
    base = {"env_type": "UNITY", "n_envs": 1, "max_step": 200, "unity_args": player, "export": "end"}
    write_folder("unity/task", base, ", memory=Gru(4)")
    assert "exported" in command("unity/task -n a").out
    assert sorted(path.name for path in Path("runs/unity/task/a").glob("*.onnx")) == ["Walker.onnx", "Watcher.onnx"]
    exports = command.json("export unity/task -n a")["exports"]
    assert [one["inputs"]["recurrent_in"] for one in exports] == [["batch", 1, 4]] * 2


def test_each_checkpoint_holds_a_file_that_is_deleted_with_it(task, command):
    setting = "base_config.export=checkpoints base_config.save_every=60 base_config.keep_checkpoints=2"
    command(f"{TRAIN} --set {setting}")
    kept = sorted(path for path in (RUN / "checkpoints").iterdir() if path.is_dir())
    assert len(kept) == 2
    assert [[file.name for file in path.glob("*.onnx")] for path in kept] == [["agent.onnx"]] * 2
    assert (RUN / "agent.onnx").read_bytes() == (kept[-1] / "agent.onnx").read_bytes()


def read_weights(run: str, checkpoint: str) -> dict:
    return torch.load(RUN.with_name(run) / "checkpoints" / checkpoint / "agent/weights.pt")


def test_training_is_not_affected_by_exports_and_failing_exports(task, monkeypatch, command):
    (task / "nn.py").write_text(NN.replace("Mlp", "NoisyMlp").format(""))  # a network that draws from torch's generator
    train = "mine/task --set base_config.save_every=100"
    command(f"{train} -n without")
    command(f"{train} base_config.export=checkpoints -n with")

    def broken(*given):
        torch.rand(3)
        raise RuntimeError("the exporter\nbroke")

    monkeypatch.setattr(graph, "_trace", broken)
    shown = command(f"{train} base_config.export=checkpoints -n broken").out
    count = shown.count("this network cannot be expressed in opset 15: RuntimeError: the exporter broke")
    assert count == 4  # at three checkpoints and at the end
    names = sorted(path.name for path in RUN.with_name("without").glob("checkpoints/*") if path.is_dir())
    assert len(names) == 3
    for name in names:
        expected = read_weights("without", name)
        for found in (read_weights(run, name) for run in ("with", "broken")):
            for kind, parts in expected.items():
                assert all(torch.equal(value, found[kind][part]) for part, value in parts.items())
    assert not list(RUN.with_name("broken").rglob("*.onnx*"))
    assert RUN.with_name("with").joinpath("agent.onnx").exists()


def test_no_error_of_an_export_affects_the_run(task, monkeypatch, command):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "open_synced", full)
    shown = command(f"{TRAIN} --set base_config.export=end").out
    assert "failed: OSError: [Errno 28] No space left on device" in shown


@pytest.mark.usefixtures("trained")
def test_each_violation_is_one_line_and_the_status_is_1(monkeypatch, command):
    monkeypatch.setattr(export, "find_violations", lambda *given: ["C1: no version", "C2: no memory"])
    shown = command(EXPORT, 1)
    assert shown.out.splitlines()[-2:] == ["C1: no version", "C2: no memory"]
    assert shown.err == "agent was not exported: 2 violations\n"
    assert command.json(EXPORT, 1)["violations"] == {"agent": ["C1: no version", "C2: no memory"]}
    assert not list(Path("runs").rglob("*.onnx*"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
@pytest.mark.usefixtures("trained")
def test_a_missing_package_is_one_line_with_the_command(package, monkeypatch, command):
    monkeypatch.setitem(sys.modules, package, None)
    for line in (EXPORT, "mine/task -n b --set base_config.export=end"):
        error = command.fail(line)
        assert error.startswith("an export needs the extra onnx (") and error.endswith('): pip install -e ".[onnx]"\n')
    monkeypatch.setattr(program, "IS_CHECKOUT", False)
    assert command.fail(EXPORT).endswith('): pip install "samara-rl[onnx]"\n')
    assert not RUN.with_name("b").exists()


def test_a_failed_export_is_one_line(task, command):
    command(f"{TRAIN} --set base_config.observe_previous=[reward]")
    error = "observes previous_reward (base_config.observe_previous), but Unity passes no reward to a model"
    assert error in command.fail(EXPORT) and not list(Path("runs").rglob("*.onnx*"))
    assert "unknown option --format" in command(f"{TRAIN} --format plain", 2).err
    assert "base_config.export is 'always'" in command.fail(f"{TRAIN} --set base_config.export=always --force")
