"""Observations with a variable number of rows, as tables of a fixed size."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.entities import PadEntities
from algorithm.adapters.gym import GymAdapter
from tests.adapters.configs import config, open_gym
from tests.adapters.contract import make_contract

PATH = "algorithm.adapters.entities:PadEntities"


class Swarm(gymnasium.Env):
    """An environment of which step t has t rows [2] of t; with `masked` as a table of 4 rows with a mask."""

    action_space = spaces.Discrete(2)

    def __init__(self, kind="sequence"):
        self.kind = kind
        row = spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = {
            "sequence": spaces.Sequence(row),
            "dict": spaces.Dict({"bees": spaces.Sequence(row), "age": spaces.Box(0, 9, (1,), np.float32)}),
            "masked": spaces.Dict({"bees": spaces.Box(-9, 9, (4, 2), np.float32), "bees_mask": spaces.MultiBinary(4)}),
        }[kind]

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 0.0, self.t == 4, False, {}

    def _observe(self):
        rows = tuple(np.full(2, self.t, np.float32) for _ in range(self.t))
        if self.kind == "sequence":
            return rows
        if self.kind == "dict":
            return {"bees": rows, "age": np.array([self.t], np.float32)}
        table = np.full((4, 2), 7, np.float32)  # absent rows may have any value
        table[: self.t] = self.t
        return {"bees": table, "bees_mask": (np.arange(4) < self.t).astype(np.int8)}


def wrapped(kind, n_envs=1, rows=4, **args):
    return config(Swarm, n_envs, {"kind": kind, **args}, wrappers=[(PATH, {"rows": rows} if rows else {})])


TestSequences = make_contract(lambda: GymAdapter(wrapped("sequence", 2)))
TestAsync = make_contract(lambda: GymAdapter(wrapped("dict", 2, vectorization_mode="async")))


@pytest.mark.parametrize(("kind", "name"), [("sequence", "obs"), ("dict", "bees"), ("masked", "bees")])
def test_rows_are_padded_with_zeros_and_have_a_feature_that_is_1(kind, name):
    adapter = open_gym(Swarm, 1, {"kind": kind}, wrappers=[(PATH, {"rows": 4})])
    spec = adapter.roles["agent"].obs_specs[name]
    assert (spec.shape, spec.rows) == ((4, 3), 4)
    steps = adapter.reset(0)
    for t in range(4):
        expected = np.zeros((4, 3))
        expected[:t] = t, t, 1
        np.testing.assert_array_equal(steps["agent"].obs[name][0], expected)
        steps = adapter.step({"agent": np.zeros((1, 1), np.float32)})
    assert "bees_mask" not in adapter.roles["agent"].obs_specs


def test_too_many_rows_truncate_the_episode_with_one_line(caplog):
    adapter = open_gym(Swarm, 1, {"kind": "sequence"}, wrappers=[(PATH, {"rows": 1})])
    adapter.reset(0)
    for _ in range(3):
        adapter.step({"agent": np.zeros((1, 1), np.float32)})
    assert "'obs' has 2 rows, and PadEntities 1: increase its rows" in caplog.text


@pytest.mark.parametrize(
    ("make", "wrappers", "message"),
    [
        (Swarm, [], r"'obs' is Sequence; .* a Sequence in the wrapper algorithm.adapters.entities:PadEntities"),
        (Swarm, [(PATH, {})], "set rows, the largest number of rows of 'obs'"),
        (lambda: gymnasium.make("CartPole-v1"), [(PATH, {"rows": 3})], "no observation is a Sequence, or has a mask"),
    ],
)
def test_observations_that_cannot_be_padded_are_an_error(make, wrappers, message):
    with pytest.raises(UnsupportedEnvironment, match=message):
        GymAdapter(config(make, wrappers=wrappers))


def test_a_sequence_of_other_spaces_is_an_error():
    env = Swarm()
    env.observation_space = spaces.Sequence(spaces.Discrete(3))
    with pytest.raises(ValueError, match="its rows must be Boxes"):
        PadEntities(env, 4)
