"""The room with a gate that opens only if a scout stays behind."""

from __future__ import annotations

import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test

from tests.envs.folders import load

MODULE = load("cooperative/escape")


def play(choose, seed=0):
    """Return the return of each scout; `choose` maps an observation to an action."""
    env = MODULE.make()
    obs, _ = env.reset(seed=seed)
    totals = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        obs, rewards, *_ = env.step({agent: choose(obs[agent]) for agent in env.agents})
        for agent, reward in rewards.items():
            totals[agent] += reward
    return totals, env


def sacrifice(obs):
    if obs[0]:
        return MODULE.LEAVE
    return MODULE.PULL if obs[1] else MODULE.WAIT


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_environment_of_pettingzoo():
    parallel_api_test(MODULE.make(), num_cycles=50)


@pytest.mark.parametrize("seed", range(3))
def test_one_that_pulls_and_two_that_leave_are_the_optimum(seed):
    totals, env = play(sacrifice, seed)
    assert totals[env.near] == pytest.approx(MODULE.STAY) and env.steps == 2
    assert sum(totals.values()) / 3 == pytest.approx(MODULE.mean_optimum())


def test_waiting_is_the_best_return_of_the_scout_next_to_the_lever():
    totals, env = play(lambda obs: MODULE.WAIT)
    assert list(totals.values()) == pytest.approx([0.1] * 3) and env.steps == 10


def test_the_gate_is_closed_at_first_and_others_pull_in_vain():
    totals, env = play(lambda obs: MODULE.LEAVE if obs[1] else MODULE.PULL)
    assert not env.is_open and totals[env.near] == pytest.approx(0.1)
    assert all(total == pytest.approx(MODULE.STAY) for agent, total in totals.items() if agent != env.near)
