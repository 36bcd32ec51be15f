"""Values, lengths and returns of the probes."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.probe import PROBES, ProbeAdapter
from algorithm.rollout import Decision
from tests.adapters.configs import config
from tests.adapters.contract import make_contract
from tests.doubles import ParityAgent, collect_lanes

GAMMA = 0.9


TestTruncation, TestLeak, TestChoice, TestChain = (
    make_contract(lambda name=name: ProbeAdapter(config(name, 3))) for name in PROBES
)


class TablePolicy(ParityAgent):
    """An agent with a fixed action for each one-hot state."""

    def __init__(self, *actions: int):
        super().__init__(rollout_length=7, state=0)
        self.actions = np.array(actions, np.float32)

    def act(self, step, memory):
        sample = self.actions[step.obs["obs"].argmax(-1)][:, None]
        return Decision(raw_action=sample, action=sample, behavior=step.obs["obs"][:, :1], memory=memory)


def collect(name: str, *actions: int, limit: int | None = None):
    actor, lanes = collect_lanes(ProbeAdapter(config(name, 2, {}, limit)), TablePolicy(*actions), 0, 200)
    return actor, list(lanes.values())


def values(name: str, *actions: int) -> np.ndarray:
    """Return the value of each state from the valid rows: the solution of V(s) = mean(r + gamma alive V(s'))."""
    _, lanes = collect(name, *actions)
    states = len(PROBES[name].next_state)
    matrix, rewards = np.eye(states), np.zeros(states)
    for state in range(states):
        rows = [(lane, t) for lane in lanes for t in np.flatnonzero(lane.valid & (lane.obs["obs"][:-1, :, state] == 1))]
        for lane, t in rows:
            rewards[state] += lane.reward[t, 0] / len(rows)
            matrix[state] -= GAMMA * lane.alive[t, 0] * lane.obs["obs"][t + 1, 0] / len(rows)
    return np.linalg.solve(matrix, rewards)


@pytest.mark.parametrize(
    ("name", "actions", "expected"),
    [
        ("truncation", (0,), [1 / (1 - GAMMA)]),
        ("leak", (1, 0), [-41, 10]),
        ("choice", (0, 1), [1, 1]),
        ("choice", (1, 1), [0, 1]),
        ("choice", (1, 0), [0, 0]),
        ("chain", (1, 1, 1), [GAMMA**2, GAMMA, 1]),
        ("chain", (1, 1, 0), [0, 0, 0]),
    ],
)
def test_states_have_their_documented_values(name, actions, expected):
    np.testing.assert_allclose(values(name, *actions), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "actions", "length", "score"),
    [
        ("truncation", (0,), 10, 10),
        ("leak", (0, 0), 10, -41),
        ("choice", (0, 1), 1, 1),
        ("chain", (1, 1, 1), 3, 1),
        ("chain", (0, 0, 0), 1, 0),
    ],
)
def test_episodes_have_their_documented_length_and_return(name, actions, length, score):
    actor, lanes = collect(name, *actions)
    assert {(episode.length, episode.episode_return) for episode in actor.episodes} == {(length, score)}
    if length == 1:
        assert not any(lane.alive[lane.valid].any() for lane in lanes)


def test_max_episode_steps_lowers_the_limit_only():
    assert {episode.length for episode in collect("truncation", 0, limit=4)[0].episodes} == {4}
    assert {episode.length for episode in collect("truncation", 0, limit=40)[0].episodes} == {10}
