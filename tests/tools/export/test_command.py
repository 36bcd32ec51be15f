"""The command export and the setting `export`, from the command line to the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
import torch
import yaml

from algorithm import program
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder
from algorithm.tools.export import export, graph
from tests.task_folder import write_task
from tests.unity_player.launcher import make_player

QUICK = {"rollout_length": 8, "sequence_length": 12, "batch_size": 4, "learning_starts": 32, "replay_ratio": 2}
NN = "from algorithm.networks import Blueprint, Gru, Mlp\nblueprint = Blueprint(body=Mlp(8){})\n"


@pytest.fixture
def task():
    """Create the folder mine/task: CartPole with a small network."""
    return folder("mine/task", {"env_type": "GYM", "env_name": "CartPole-v1", "n_envs": 2, "max_step": 300})


@pytest.fixture
def trained(task, capsys):
    """Train the run a in the folder mine/task."""
    assert main.main(["mine/task", "-n", "a"]) == 0
    capsys.readouterr()


def folder(name: str, base: dict, memory: str = "") -> Path:
    tree = {"base_config": base, "replay_config": {"capacity": 2000}, "acer_config": QUICK}
    return write_task(yaml.safe_dump({"default": tree}), name, NN.format(memory))


def call(capsys, *arguments: str) -> dict:
    """Return the output of a command for scripts."""
    capsys.readouterr()
    status = main.main([*arguments, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == status
    return record


def weights(run: str, checkpoint: str) -> dict:
    return torch.load(f"runs/mine/task/{run}/checkpoints/{checkpoint}/agent/weights.pt")


def test_a_run_of_gymnasium_is_exported(task, capsys):
    assert main.main(["mine/task", "-n", "a", "--set", "base_config.save_every=150"]) == 0
    record = call(capsys, "export", "mine/task", "-n", "a")
    (one,) = record["exports"]
    assert (one["role"], one["path"], one["opset"]) == ("agent", "runs/mine/task/a/agent.onnx", 15)
    assert one["inputs"] == {"obs_0": ["batch", 4], "action_masks": ["batch", 2]}
    assert one["size"] == Path(one["path"]).stat().st_size and one["parity"] < 1e-4

    first = min(path.name for path in Path("runs/mine/task/a/checkpoints").iterdir())
    assert main.main(["export", "mine/task", "--barracuda", "--ckpt", str(int(first))]) == 0
    shown = capsys.readouterr().out
    assert "agent.onnx: " in shown and "opset 9; inputs obs_0 [batch, 4], action_masks [batch, 2]; outputs" in shown
    model = onnx.load(one["path"])
    assert model.opset_import[0].version == 9
    assert {entry.key: entry.value for entry in model.metadata_props}["env_steps"] == str(int(first))


@pytest.mark.usefixtures("prepared_scenes")
def test_every_behavior_of_a_scene_is_exported_under_its_name(tmp_path, capsys):
    player = {"build_path": str(make_player(tmp_path, "two_behaviors")), "timeout_wait": 20}
    base = {"env_type": "UNITY", "n_envs": 1, "max_step": 200, "unity_args": player, "export": "end"}
    folder("unity/task", base, ", memory=Gru(4)")
    assert main.main(["unity/task", "-n", "a"]) == 0
    assert "exported" in capsys.readouterr().out
    run = Path("runs/unity/task/a")
    assert sorted(path.name for path in run.glob("*.onnx")) == ["Walker.onnx", "Watcher.onnx"]
    record = call(capsys, "export", "unity/task", "-n", "a")
    assert [one["inputs"]["recurrent_in"] for one in record["exports"]] == [["batch", 1, 4]] * 2


def test_each_checkpoint_holds_a_file_that_is_deleted_with_it(task):
    setting = ["base_config.export=checkpoints", "base_config.save_every=60", "base_config.keep_checkpoints=2"]
    assert main.main(["mine/task", "-n", "a", "--set", *setting]) == 0
    run = RunFolder(Path("runs/mine/task/a"))
    kept = sorted(path for path in (run.path / "checkpoints").iterdir() if path.is_dir())
    assert len(kept) == 2
    assert [[file.name for file in path.glob("*.onnx")] for path in kept] == [["agent.onnx"]] * 2
    assert (run.path / "agent.onnx").read_bytes() == (kept[-1] / "agent.onnx").read_bytes()


def test_training_is_not_affected_by_exports_and_failing_exports(task, monkeypatch, capsys):
    (task / "nn.py").write_text(NN.replace("Mlp", "NoisyMlp").format(""))  # a network that draws from torch's generator
    train = ["mine/task", "--set", "base_config.save_every=100"]
    assert main.main([*train, "-n", "without"]) == 0
    assert main.main([*train, "base_config.export=checkpoints", "-n", "with"]) == 0
    capsys.readouterr()

    def broken(*given):
        torch.rand(3)
        raise RuntimeError("the exporter\nbroke")

    monkeypatch.setattr(graph, "_trace", broken)
    assert main.main([*train, "base_config.export=checkpoints", "-n", "broken"]) == 0
    output_text = capsys.readouterr().out
    count = output_text.count("this network cannot be expressed in opset 15: RuntimeError: the exporter broke")
    assert count == 4  # at three checkpoints and at the end
    names = sorted(path.name for path in Path("runs/mine/task/without/checkpoints").iterdir() if path.is_dir())
    assert len(names) == 3
    for name in names:
        expected = weights("without", name)
        for run in ("with", "broken"):
            found = weights(run, name)
            for kind, parts in expected.items():
                assert all(torch.equal(value, found[kind][part]) for part, value in parts.items())
    assert not list(Path("runs/mine/task/broken").rglob("*.onnx*"))
    assert (Path("runs/mine/task/with") / "agent.onnx").exists()


def test_no_error_of_an_export_affects_the_run(task, monkeypatch, capsys):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "open_synced", full)
    assert main.main(["mine/task", "-n", "a", "--set", "base_config.export=end"]) == 0
    assert "failed: OSError: [Errno 28] No space left on device" in capsys.readouterr().out


@pytest.mark.usefixtures("trained")
def test_each_violation_is_one_line_and_the_status_is_1(monkeypatch, capsys):
    monkeypatch.setattr(export, "find_violations", lambda *given: ["C1: no version", "C2: no memory"])
    assert main.main(["export", "mine/task", "-n", "a"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-2:] == ["C1: no version", "C2: no memory"]
    assert shown.err == "agent was not exported: 2 violations\n"
    record = call(capsys, "export", "mine/task", "-n", "a")
    assert record["violations"] == {"agent": ["C1: no version", "C2: no memory"]} and record["status"] == 1
    assert not list(Path("runs").rglob("*.onnx*"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
@pytest.mark.usefixtures("trained")
def test_a_missing_package_is_one_line_with_the_command(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    for words in ("export mine/task -n a", "mine/task -n b --set base_config.export=end"):
        assert main.main(words.split()) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("an export needs the extra onnx (") and said.endswith('): pip install -e ".[onnx]"\n')
    monkeypatch.setattr(program, "IS_CHECKOUT", False)
    assert main.main(["export", "mine/task", "-n", "a"]) == 2
    assert capsys.readouterr().err.endswith('): pip install "samara-rl[onnx]"\n')
    assert not Path("runs/mine/task/b").exists()


def test_a_failed_export_is_one_line(task, capsys):
    assert main.main(["mine/task", "-n", "a", "--set", "base_config.observe_previous=[reward]"]) == 0
    assert main.main(["export", "mine/task", "-n", "a"]) == 2
    error = "observes previous_reward (base_config.observe_previous), but Unity passes no reward to a model"
    assert error in capsys.readouterr().err and not list(Path("runs").rglob("*.onnx*"))
    assert main.main(["mine/task", "-n", "a", "--barracuda"]) == 2
    assert "unknown option --barracuda" in capsys.readouterr().err
    assert main.main(["mine/task", "-n", "a", "--set", "base_config.export=always", "--force"]) == 2
    assert "base_config.export is 'always'" in capsys.readouterr().err
