"""Tests of image observations from the simulator to the weights: both layouts, mixed with vectors, in both replays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm import load
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train

ENV = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Panels(gymnasium.Env):
    """An environment with two images and a vector. The first pixel of the small image is the rewarded action."""

    def __init__(self, channels):
        self.channels = channels
        large = (7, 8, 2) if channels == "last" else (2, 7, 8)
        self.observation_space = spaces.Dict({
            "large": spaces.Box(0, 255, large, np.uint8),
            "small": spaces.Box(0, 1, (5, 6), bool),
            "number": spaces.Box(-1, 1, (2,)),
        })
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_left = 7
        return self._observe(), {}

    def step(self, action):
        self.steps_left -= 1
        return self._observe(), float(action == self.rewarded_action), False, not self.steps_left, {}

    def _observe(self):
        large = self.np_random.integers(0, 256, (2, 7, 8), np.uint8)
        small = self.np_random.random((5, 6)) < 0.5
        self.rewarded_action = int(small[0, 0])
        if self.channels == "last":
            large = np.ascontiguousarray(large.transpose(1, 2, 0))
        return {"large": large, "small": small, "number": self.np_random.random(2).astype(np.float32)}


def make(channels="first"):
    return Panels(channels)
'''
NN = """
from algorithm.networks import Blueprint, Conv, Mlp, Vector

encoders = {"large": Conv((4, 3, 2), units=16), "small": Conv((3, 3, 1), units=None), "*": Vector()}
blueprint = Blueprint(encoders, body=Mlp(16))
"""
TASK = {
    "base_config": {
        "env_name": "env.py",
        "n_envs": 3,
        "max_step": 240,
        "log_every": 120,
        "save_every": 120,
        "evaluate_every": None,
        "keep_checkpoints": 9,
    },
    "replay_config": {"capacity": 180},  # small, so that its first steps are overwritten
    "acer_config": {"rollout_length": 10, "sequence_length": 10, "batch_size": 4, "learning_starts": 60},
}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "env.py").write_text(ENV, encoding="utf-8")
    (folder / "nn.py").write_text(NN, encoding="utf-8")
    return folder


def run(source, name, **changes):
    """Train a new run, or resume the run of this name."""
    settings = resolve([("test", merge(TASK, changes))])
    try:
        folder = RunFolder.create("test", source, name, settings.tree)
    except UserError:
        folder = RunFolder.find("test", name)
    train(settings, folder, lambda line: None)
    return folder


def equal_weights(one: RunFolder, other: RunFolder) -> bool:
    expected, weights = one.find_latest().weights("agent"), other.find_latest().weights("agent")
    assert one.find_latest().counters.updates > 30
    return all(torch.equal(flat, weights[kind][name]) for kind in expected for name, flat in expected[kind].items())


def test_both_layouts_give_the_same_weights_and_actions_bit_for_bit(source):
    first, last, other = (
        run(source, name, base_config={"env_args": {"channels": channels}, "seed": seed})
        for name, channels, seed in (("a", "first", 0), ("b", "last", 0), ("c", "last", 1))
    )
    assert equal_weights(first, last) and not equal_weights(first, other)
    specs = last.read_roles()["agent"].obs_specs
    assert specs["large"].effective_env_shape == (7, 8, 2) and specs["small"].effective_env_shape == (5, 6)
    with np.load(first.find_latest().folder / "agent" / "replay.npz") as replay:
        assert replay["obs/large"].dtype == replay["obs/small"].dtype == np.uint8
        assert replay["obs/large"].shape == (3, 60, 2, 7, 8)

    # A trained agent takes images in the layout of its environment.
    players = [load(folder.path, disable_sample=True) for folder in (first, last)]
    rng = np.random.default_rng(0)
    batch = {
        "large": rng.integers(0, 256, (40, 2, 7, 8), np.uint8),
        "small": rng.random((40, 5, 6)) < 0.5,
        "number": rng.random((40, 2), np.float32),
    }
    channels_last = {**batch, "large": batch["large"].transpose(0, 2, 3, 1)}
    actions = players[0].act(batch)
    np.testing.assert_array_equal(players[1].act(channels_last), actions)
    assert players[1].act({name: value[3] for name, value in channels_last.items()}) == actions[3]
    with pytest.raises(ValueError, match="observations have the shapes"):
        players[1].act(batch)


def test_a_memory_mapped_replay_gives_the_same_weights_also_when_resumed(source):
    mapped = {"replay_config": {"memory_map": True}}
    in_memory, in_files = run(source, "a"), run(source, "b", **mapped)
    assert equal_weights(in_memory, in_files)
    started_in_memory = run(source, "c", base_config={"max_step": 120})
    run(source, "c", **mapped)
    started_in_files = run(source, "d", base_config={"max_step": 120}, **mapped)
    run(source, "d", **mapped)
    assert equal_weights(started_in_memory, started_in_files)
    for folder in (in_files, started_in_files):
        assert not [path for path in folder.path.iterdir() if path.name.startswith("tmp")]


def test_a_replay_larger_than_the_free_disk_is_rejected(source):
    with pytest.raises(UserError, match=r"capacity: .* MB, but .* MB of disk are free; at most .* rows fit"):
        run(source, "a", replay_config={"memory_map": True, "capacity": 10**13})
