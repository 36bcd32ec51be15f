"""A trained agent accepts observations, and returns actions, in the form of the environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.wrappers import PreviousActionReward
from algorithm.rollout import Decision
from algorithm.runs.trained_agent import TrainedAgent
from algorithm.specs import ACTION_MASK
from tests.adapters.configs import config
from tests.adapters.contract import random_actions
from tests.adapters.spaced import Masked, Sampling, allowed

BOX, PLACE = spaces.Box(-1, 1, (2, 3)), spaces.MultiDiscrete([[3, 2], [2, 2]], start=[[1, 0], [0, -1]])
SPACES = {
    "Box": BOX,
    "scalar": spaces.Box(0, 1, ()),
    "Discrete": spaces.Discrete(4, start=2),
    "MultiDiscrete": PLACE,
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "Dict": spaces.Dict({"place": PLACE, "speed": BOX, "door": spaces.Discrete(2)}),
    "Tuple": spaces.Tuple([spaces.Discrete(3), BOX, spaces.MultiBinary(3)]),
    "Tuple of one": spaces.Tuple([spaces.Discrete(3)]),
}


class Drawing:
    """An agent that stores the steps it receives and draws random actions that depend on the number of rows only."""

    state_size = 1

    def __init__(self, spec):
        self.spec, self.shown = spec, []

    def act(self, step, memory):
        self.shown.append(step.obs)
        action = np.concatenate([random_actions(self.spec, 1, np.random.default_rng(row)) for row in step.lane])
        none = np.zeros((len(action), 0), np.float32)
        return Decision(raw_action=action, action=action, behavior=none, memory=memory + 1)


def player_of(make, **env_args) -> tuple[TrainedAgent, Drawing]:
    adapter = GymAdapter(config(make, 1, {"vectorization_mode": "sync", **env_args}))
    role = adapter.roles["agent"]
    agent = Drawing(role.action_spec)
    adapter.close()
    return TrainedAgent(agent, role), agent


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_one_observation_gives_one_action_and_a_batch_a_batch(space):
    player, agent = player_of(Sampling, observation_space=space, action_space=space)
    space.seed(0)
    own = [space.sample() for _ in range(3)]
    for value in own:
        action = player.act(value)
        assert space.contains(np.asarray(action) if isinstance(action, np.generic) else action), action
        if not isinstance(space, (spaces.Dict, spaces.Tuple)):
            assert np.shape(action) == space.shape
    player.reset()
    actions = player.act(concatenate(space, own, create_empty_array(space, 3)))
    assert len(list(iterate(batch_space(space, 3), actions))) == 3
    *singles, batch = agent.shown
    for name, value in batch.items():
        np.testing.assert_array_equal(value, np.concatenate([single[name] for single in singles]))
        assert all(value.dtype == single[name].dtype for single in singles)


def test_observations_that_do_not_fit_are_an_error():
    player, _ = player_of(Sampling, observation_space=SPACES["Dict"], action_space=BOX)
    whole = {"place": PLACE.sample(), "speed": np.zeros((2, 3)), "door": 1}
    player.act(whole)
    with pytest.raises(ValueError, match="observation 'door' is missing; expected door, place, speed"):
        player.act({"place": whole["place"], "speed": whole["speed"]})
    for wrong in ({"door": [1]}, {"speed": np.zeros((2, 2))}, {"door": [1, 1], "speed": np.zeros((2, 2, 3))}):
        with pytest.raises(ValueError, match=r"observations have the shapes .*'speed': \(2, 3\)"):
            player.act({**whole, **wrong})
    with pytest.raises(ValueError, match="expected an observation with the parts door, place, speed, got ndarray"):
        player.act(np.zeros(3))
    with pytest.raises(ValueError, match="2 is not one of the integers from 0 to 1"):
        player.act({**whole, "door": 2})


def test_masks_are_passed_from_the_infos_or_are_inside_the_observation():
    player, agent = player_of(Masked)
    mask = allowed(5)
    for own in (mask, mask.astype(bool), (mask[:3], mask[3:])):
        player.act(np.zeros(1), own)
    player.reset()
    player.act(np.zeros((2, 1)), action_mask=np.stack([mask, allowed(2)]))
    assert [shown[ACTION_MASK].tolist() for shown in agent.shown] == [[mask.tolist()]] * 3 + [
        [mask.tolist(), allowed(2).tolist()]
    ]
    assert all(shown[ACTION_MASK].dtype == np.uint8 for shown in agent.shown)
    player, agent = player_of(Masked, how="binary")
    player.act({"number": np.zeros(1), "action_mask": allowed(5)})
    assert agent.shown[0][ACTION_MASK].tolist() == [allowed(5).tolist()]
    with pytest.raises(ValueError, match="action_mask: no mask"):
        player.act({"number": np.zeros(1), "action_mask": allowed(5)}, allowed(5))


def test_a_mask_that_is_missing_or_does_not_fit_is_an_error():
    player, _ = player_of(Masked)
    with pytest.raises(ValueError, match=r'are masked: call act\(obs, info\["action_mask"\]\)'):
        player.act(np.zeros(1))
    with pytest.raises(ValueError, match="the mask has 4 numbers, but the branches have 3 and 2 actions"):
        player.act(np.zeros(1), np.ones(4))
    with pytest.raises(ValueError, match="5 masks for 2 observations"):
        player.act(np.zeros((2, 1)), np.ones(5))
    unmasked, _ = player_of(Sampling, observation_space=BOX, action_space=BOX)
    with pytest.raises(ValueError, match="action_mask: no mask"):
        unmasked.act(np.zeros((2, 3)), np.ones(5))


def test_an_agent_observes_its_last_action_and_reward():
    role = PreviousActionReward(
        GymAdapter(config(Sampling, 1, {"action_space": spaces.Discrete(3), "observation_space": BOX})),
        ["action", "reward"],
    ).roles
    role = role["agent"]
    agent = Drawing(role.action_spec)
    player = TrainedAgent(agent, role)
    obs = np.zeros(role.obs_specs["obs"].effective_env_shape, np.float32)
    done = [player.act(obs), player.act(obs, reward=2.0), player.act(obs, reward=-1.0)]
    shown = [(step["previous_action"].tolist(), step["previous_reward"].tolist()) for step in agent.shown]
    hot = np.eye(3)
    assert shown == [([[0, 0, 0]], [[0]]), ([hot[done[0]].tolist()], [[2]]), ([hot[done[1]].tolist()], [[-1]])]
    with pytest.raises(ValueError, match=r"call act\(obs, reward=reward\)"):
        player.act(obs)
    with pytest.raises(ValueError, match="2 rewards for 1 observations"):
        player.act(obs, reward=[1.0, 2.0])
    player.reset()
    player.act(np.stack([obs, obs]))
    player.act(np.stack([obs, obs]), reward=[1.0, 3.0])
    assert agent.shown[-1]["previous_reward"].tolist() == [[1], [3]]
    assert not agent.shown[-2]["previous_action"].any()
