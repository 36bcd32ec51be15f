from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.probe import ProbeAdapter
from algorithm.training import evaluator as evaluator_module
from algorithm.training.evaluator import EvaluationResult, Evaluator
from algorithm.training.invalid_values import InvalidEpisodes
from algorithm.training.learner import Learner
from tests.adapters.configs import config
from tests.builders import make_acer
from tests.doubles import ParityAgent, Row, ScriptedAdapter, make_step
from tests.fakes import Distillation


def lane_row(lane: int, t: int, length: int, reward: float, shown: bool) -> Row:
    """Return episodes of `length` decisions, truncated with a final observation if `shown`, otherwise terminated."""
    age = t % (length + shown)
    first, began = age == 0, t == 0
    return Row(
        lane,
        obs=10 * lane + age,
        reward=0 if began or (first and shown) else reward,
        alive=began or not first or shown,
        first=first,
        is_bootstrap_row=age == length,
    )


def adapter_of(*lanes: tuple[int, float], shown: bool = False, ticks: int = 60) -> ScriptedAdapter:
    """Return a script with a lane for each (length, reward per decision)."""
    steps = []
    for t in range(ticks):
        rows = [lane_row(lane, t, length, reward, shown) for lane, (length, reward) in enumerate(lanes)]
        steps.append({"agent": make_step(*rows)})
    return ScriptedAdapter(steps, agent=len(lanes))


def make_evaluator(adapter, agent=None, greedy=True, **arguments):
    agent = agent or ParityAgent(rollout_length=1)
    return Evaluator(adapter, lambda role: agent, greedy, **arguments)


def play(adapter, episodes, agent=None, greedy=True):
    return make_evaluator(adapter, agent, greedy).play(episodes, seed=0)["agent"]


@pytest.mark.parametrize("shown", [False, True], ids=["terminations", "truncations"])
def test_short_episodes_do_not_count_more_often_than_long_ones(shown):
    played = play(adapter_of((1, 1.0), (9, 1.0), shown=shown), episodes=6)
    assert sorted(played.lengths) == sorted(played.returns) == [1, 1, 1, 9, 9, 9]
    assert played.length == 5


def test_evaluation_does_not_wait_for_a_lane_without_an_agent():
    adapter = adapter_of((2, 1.0), (2, 1.0))
    adapter.roles["agent"] = replace(adapter.roles["agent"], lanes=3)
    assert play(adapter, episodes=6).lengths == [2, 2, 2, 2]


@pytest.mark.parametrize(("episodes", "each"), [(1, 1), (3, 1), (4, 2), (20, 7)])
def test_every_lane_plays_the_same_number_of_episodes_and_all_at_least_the_requested_one(episodes, each):
    played = play(adapter_of((1, 1.0), (2, 10.0), (3, 100.0)), episodes)
    assert sorted(played.returns) == [1] * each + [20] * each + [300] * each


def test_the_progress_counts_the_episodes_of_all_lanes():
    shown, evaluator = [], make_evaluator(adapter_of((1, 1.0), (2, 10.0)))
    evaluator.play(3, 0, lambda *progress: shown.append(progress))
    assert shown[0] == (0, 4, 1) and shown[-1][:2] == (4, 4)
    assert [tick for _, _, tick in shown] == list(range(1, len(shown) + 1))
    assert sorted(shown) == shown


@pytest.mark.parametrize(("greedy", "actions"), [(True, [1, 0, 1]), (False, [0, 1, 0])])
def test_actions_are_greedy_or_sampled_as_set(greedy, actions):
    adapter = adapter_of((5, 1.0))
    played = play(adapter, episodes=1, greedy=greedy)
    assert [action["agent"].item() for action in adapter.actions][:3] == actions
    assert played.greedy == greedy


def test_memory_is_zero_at_the_start_of_every_episode():
    class Remembering(ParityAgent):
        def greedy(self, step, memory):
            seen.append(memory.ravel().tolist())
            return super().greedy(step, memory)

    seen = []
    play(adapter_of((2, 1.0), (3, 1.0)), episodes=4, agent=Remembering(rollout_length=1))
    assert seen[:6] == [[0, 0], [1, 1], [0, 2], [1, 0], [0, 1], [1, 2]]


def test_every_role_plays_its_episodes():
    ticks = [
        {"left": make_step(lane_row(0, t, 1, 1.0, False)), "right": make_step(lane_row(0, t, 4, 1.0, False))}
        for t in range(30)
    ]
    adapter = ScriptedAdapter(ticks, left=1, right=1)
    played = make_evaluator(adapter).play(3, seed=77)
    assert adapter.seed == 77
    assert played["left"].lengths == [1, 1, 1]
    assert played["right"].lengths == [4, 4, 4]


class Normalising(ParityAgent):
    """An agent with batch normalization, whose statistics change with every forward pass in training mode."""

    def __init__(self):
        super().__init__(rollout_length=1)
        self.policy = nn.BatchNorm1d(1)

    @torch.no_grad()
    def act(self, step, memory):
        self.policy(torch.from_numpy(step.obs["obs"]))
        return super().act(step, memory)


@pytest.mark.parametrize("greedy", [False, True])
def test_statistics_do_not_change_during_evaluation(greedy):
    agent = Normalising()
    adapter = adapter_of((3, 1.0), (2, 1.0))
    play(adapter, episodes=2, agent=agent, greedy=greedy)
    assert agent.policy.num_batches_tracked == 0
    assert agent.policy.training
    agent.act(adapter.reset(0)["agent"], np.zeros((2, 1), np.float32))
    assert agent.policy.num_batches_tracked == 1


def test_evaluation_changes_no_parameters_and_no_generators():
    adapter = ProbeAdapter(config("choice", 2, {}))
    role = adapter.roles["agent"]
    agent = make_acer(role, reward_normalization="return_std")
    learner = Learner(agent, role, {"distillation": Distillation(Distillation.Settings())}, None)
    flats = [flat for flat, _ in learner.parameters.named_slices().values()]
    before = [flat.clone() for flat in flats]
    drawn, torch_drawn = agent.rng.bit_generator.state, torch.get_rng_state()
    make_evaluator(adapter, agent, greedy=False).play(50, seed=3)
    assert agent.rng.bit_generator.state == drawn and torch.equal(torch.get_rng_state(), torch_drawn)
    assert all(flat.equal(old) for flat, old in zip(flats, before, strict=True))


def test_the_same_seed_plays_the_same_episodes_again():
    def adapter():
        return GymAdapter(config("CartPole-v1", 3, {}))

    agent = make_acer(adapter().roles["agent"])
    first, second = (make_evaluator(adapter(), agent, greedy=False) for _ in range(2))
    first.play(7, seed=1)
    assert first.play(7, seed=2) == second.play(7, seed=2)
    assert first.play(7, seed=3) != second.play(7, seed=4)


# Student's t with n - 1 degrees of freedom, from a printed table.
@pytest.mark.parametrize(
    ("n", "t"),
    [(2, 12.706), (3, 4.303), (5, 2.776), (8, 2.365), (13, 2.179), (20, 2.093), (26, 2.060), (101, 1.984)],
)
def test_the_interval_uses_students_t(n, t):
    returns = list(np.random.default_rng(0).normal(size=n))
    low, high = EvaluationResult(returns, [1] * n).interval
    assert high - low == pytest.approx(2 * t * np.std(returns, ddof=1) / n**0.5, rel=2e-3)
    assert (low + high) / 2 == pytest.approx(np.mean(returns))


def test_the_interval_is_unbounded_for_one_episode_and_a_point_for_equal_returns():
    assert EvaluationResult([3.0], [1]).interval == (-inf, inf)
    assert EvaluationResult([3.0, 3.0], [1, 1]).interval == (3, 3)


def test_a_result_as_text():
    pair, single = EvaluationResult([1.0, 3.0], [1, 1]), EvaluationResult([0.955], [1], greedy=False)
    assert str(pair) == "return 2.000 (95% interval -10.71 to 14.71) over 2 episodes, greedy"
    assert str(single) == "return 0.955 in 1 episode, sampled"
    assert (pair.mean, pair.std) == (2, 1)


@pytest.mark.parametrize("born", [3, 7])
def test_agents_that_appear_during_evaluation_share_the_episodes(born):
    """Lane 0 plays episodes of two decisions; lanes 1 and 2, which are added later, of three."""
    ticks = []
    for t in range(60):
        rows = [lane_row(0, t, 2, 1.0, False)]
        rows += [lane_row(lane, t - born, 3, 10.0, False) for lane in (1, 2) if t >= born]
        ticks.append({"agent": make_step(*rows)})
    played = play(ScriptedAdapter(ticks, agent=1), episodes=9)
    assert sorted(played.returns) == [2.0] * 3 + [30.0] * 6
    assert sorted(played.lengths) == [2] * 3 + [3] * 6


def test_an_evaluation_whose_episodes_are_invalid_ends():
    adapter = GymAdapter(config("tests.adapters.spaced:Invalid-v0", n_envs=2))
    with pytest.raises(InvalidEpisodes, match="all .* episodes of role 'agent' since the last valid one"):
        play(adapter, episodes=4)


def test_an_evaluation_is_interrupted_between_two_ticks():
    adapter, agent = adapter_of((4, 1.0)), Normalising()
    rng = agent.rng
    interrupt = Mock(side_effect=[None, None, KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        make_evaluator(adapter, agent, before_tick=interrupt).play(3, seed=0)
    assert len(adapter.actions) == 2 and agent.rng is rng and agent.policy.training


def test_evaluation_waits_max_idle_ticks_for_an_agent_that_has_left(monkeypatch):
    monkeypatch.setattr(evaluator_module, "MAX_IDLE_TICKS", 30)
    ticks = []
    for t in range(80):
        rows = [lane_row(0, t, 2, 1.0, False)]
        rows += [lane_row(1, t, 3, 10.0, True)] * (t < 8)  # two episodes only
        visitor = {"visitor": make_step(lane_row(0, t, 9, 1.0, False))} if t < 5 else {}  # less than one episode
        ticks.append({"agent": make_step(*rows), **visitor})
    adapter = ScriptedAdapter(ticks, agent=2, visitor=1)
    played = make_evaluator(adapter).play(6, seed=0)
    assert sorted(played) == ["agent"]
    assert sorted(played["agent"].returns) == [2.0] * 3 + [30.0] * 2
    assert 30 < len(adapter.actions) < 50
