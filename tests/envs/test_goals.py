"""The maze of goals: its wall, its rewards for other goals, and what hindsight needs of an environment."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.gym import GymAdapter, compute_goal_rewards
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.env_folder import PROJECT_ENVS
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import load_environment
from tests.adapters.configs import config

FOLDER = PROJECT_ENVS / "goals" / "point_maze"
GOALS = {"base_config": {"env_type": "GYM", "env_name": "env.py", "algorithm": "SAC", "n_envs": 2}}


@pytest.fixture
def maze():
    return load_environment(FOLDER, "env.py")()


def open_run(**sections) -> RunFolder:
    tree = resolve(
        [("test", GOALS), ("test", {"replay_config": {"hindsight": 4, "capacity": 2000}}), ("test", sections)]
    )
    return RunFolder.create("goals/point_maze", FOLDER, "a", tree.tree)


def build(folder: RunFolder):
    settings = folder.load_settings()
    adapter = Environments(settings, folder).open(2)
    try:
        return ComponentsBuilder(settings, folder, None, lambda line: None)("agent", adapter.roles["agent"])
    finally:
        adapter.close()


def test_the_wall_stops_the_point_below_its_upper_end_only(maze):
    for height, passes in ((0.5, False), (1.65, False), (1.85, True)):
        maze.reset(seed=0)
        maze.place, maze.speed = np.array([0.9, height]), np.zeros(2)
        for _ in range(10):
            obs, *_ = maze.step(np.array([1.0, 0.0]))
        assert (obs["achieved_goal"][0] > 1) == passes


def test_the_reward_of_a_step_is_that_of_its_goals_and_terminates(maze):
    obs, _ = maze.reset(seed=0)
    maze.place, maze.goal = np.array([1.3, 0.4]), np.array([1.55, 0.65])
    rewards, ends = [], []
    for _ in range(6):
        obs, reward, terminated, truncated, _ = maze.step(np.array([1.0, 1.0]))
        assert (np.array([reward]), np.array([terminated])) == compute_goal_rewards(
            maze, obs["achieved_goal"][None], obs["desired_goal"][None]
        )
        rewards.append(reward)
        ends.append(terminated)
        if terminated:
            break
    assert rewards[-1] == 1 and ends[-1] and sum(rewards) == 1 and not truncated


def test_methods_for_single_goals_are_called_for_each_and_without_terminations_nothing_ends():
    class Single:
        def compute_reward(self, achieved, desired, info):
            assert info == {}
            return float(np.linalg.norm(achieved - desired) < 0.5)  # of all rows together

    achieved = np.array([[0.0, 0], [1, 1], [3, 3]])
    reward, ended = compute_goal_rewards(Single(), achieved, np.array([[0.1, 0], [3, 3], [3, 3.2]]))
    assert reward.tolist() == [1, 0, 1] and not ended.any() and reward.dtype == np.float32


def test_an_adapter_has_the_goals_of_its_environment(maze):
    adapter = GymAdapter(config("CartPole-v1", 2))
    assert adapter.find_goal_rewards() is None
    adapter.close()


def test_a_run_of_the_folder_replaces_goals(monkeypatch):
    replay = build(open_run()).scheduler.replay
    assert replay.goals.hindsight.share == 0.8
    reward, ended = replay.goals.hindsight.compute_rewards(
        np.zeros((3, 2)), np.array([[0.0, 0.05], [1, 1], [0.05, 0.0]])
    )
    assert reward.tolist() == [1, 0, 1] and ended.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"base_config": {"algorithm": "ACER"}}, "hindsight is for SAC with n_step 1 or use_n_step_is false"),
        ({"sac_config": {"n_step": 3, "sequence_length": 3}}, "hindsight is for SAC with n_step 1 or use_n_step_is"),
        ({"base_config": {"env_name": "CartPole-v1"}}, "hindsight needs the observations achieved_goal, desired_goal"),
    ],
)
def test_what_excludes_hindsight_is_one_line(sections, message):
    with pytest.raises(UserError, match=message):
        build(open_run(**sections))
