"""The scenes of examples/godot in the engine itself, Godot 3 without graphics; skipped where it is not installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest

from algorithm.adapters.scenes import adapter as scenes_adapter
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder
from tests.adapters.configs import opened
from tests.adapters.contract import make_contract
from tests.adapters.godot.test_godot import ROOT, GodotAdapter, make_config
from tests.faults.namespaces import _read, list_descendants

PROGRAM = "godot3-server"
pytestmark = [
    pytest.mark.usefixtures("prepared_scenes"),
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed (Debian has it)"),
]


def open_scene(name: str, copies: int = 1) -> GodotAdapter:
    """Return an adapter of a scene of the examples, whose agents decide in every fifth physics tick."""
    section = {"project_path": str(ROOT / "examples" / "godot"), "additional_args": [f"{name}.tscn"]}
    return opened(GodotAdapter(make_config(None, copies, action_repeat=5, **section)))


TestBall = make_contract(lambda: open_scene("ball", copies=2))
TestChase = make_contract(lambda: open_scene("chase"))


def test_the_runner_of_chase_moves_and_jumps():
    adapter = open_scene("chase")
    adapter.reset(0)
    for _ in range(5):  # it falls to the ground, then runs along x
        obs = adapter.step({"agent": np.tile(np.float32([1, 0, 0]), (8, 1))})["agent"].obs["obs"]
    assert (obs[:, 3] > 0.9).any() and not (obs[:, 4] > 0.01).any()
    obs = adapter.step({"agent": np.tile(np.float32([0, 0, 1]), (8, 1))})["agent"].obs["obs"]
    assert (obs[:, 4] > 0.5).any()


def test_killed_engines_start_again(monkeypatch):
    monkeypatch.setattr(scenes_adapter, "FIRST_PAUSE", 0.0)
    adapter = open_scene("ball", copies=2)
    steps, kills, deadline = adapter.reset(0), 0, time.monotonic() + 120
    while kills < 3 or len(steps["agent"].lane) < 16:
        assert time.monotonic() < deadline
        if kills < 3 and kills == adapter.restarts and len(steps["agent"].lane) == 16:
            (engine, *_) = [
                pid for pid in list_descendants(os.getpid()) if _read(f"/proc/{pid}/comm").strip() == PROGRAM
            ]
            os.kill(engine, signal.SIGKILL)
            kills += 1
        steps = adapter.step({"agent": np.zeros((len(steps["agent"].lane), 2), np.float32)}) or steps
    assert adapter.restarts == 3 and "crashed with signal SIGKILL" in adapter.last_error


def test_the_ball_stays_on_the_plate_after_training(tmp_path, monkeypatch):
    """A whole run of the folder in two processes, since the engine is tested nowhere else."""
    shutil.copytree(ROOT / "envs" / "godot", tmp_path / "envs" / "godot")
    monkeypatch.chdir(tmp_path)
    project = f"base_config.godot_args.project_path={ROOT / 'examples' / 'godot'}"
    assert main.main(["godot/ball", "-n", "a", "--seed", "3", "--set", project]) == 0
    result = json.loads((RunFolder.find("godot/ball", "a").path / "result.json").read_text())
    assert result["reached"] and result["evaluation"]["agent"]["mean"] > 45
