"""Opponents of self-play: which play, with which weights, and their ratings."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import algorithm
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.opponents import LATEST, EvaluationOpponents, OpponentPool
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.training.metrics import read_table
from algorithm.training.progress import Counters
from tests.checkpointing.test_resume import copy_shortened, new_run, open_components, train_run

pytestmark = pytest.mark.usefixtures("registered_fakes")
RUN = "self-play, recurrent"


def make_pool(tmp_path, name="pool", **config):
    """Return a pool, whose agents are in training, and its folder."""
    folder = new_run(tmp_path, name, RUN, max_step=1000)
    tree = folder.load_settings().tree
    settings = resolve([("test", {**tree, "opponent_config": {**tree["opponent_config"], **config}})])
    pool = OpponentPool(settings, folder)
    training = open_components(folder)
    for role in training.adapter.roles:
        training.get(role)
    pool.connect(training)
    return pool, folder


@pytest.mark.parametrize(
    ("reward", "opponent", "expected"),
    [(3.0, LATEST, 1200.5), (-1.0, LATEST, 1199.5), (0.0, LATEST, 1200.0), (1.0, "strong", 1200 + 10 / 11)],
)
def test_the_rating_of_a_role_follows_elo(tmp_path, reward, opponent, expected):
    pool, _ = make_pool(tmp_path)
    pool._version_ratings["strong"] = {"left": 0.0, "right": 1600.0}  # the mean over the roles that it plays
    pool.record("left", opponent, reward)
    assert pool.ratings == {"left": pytest.approx(expected)}
    assert pool.get_rating("right") == 1200
    assert pool.collect_metrics() == {"self_play/elo/left": pytest.approx(expected), "self_play/elo/right": 1200.0}


def test_versions_are_saved_at_intervals_and_opponents_drawn_from_the_last_ones(tmp_path):
    pool, folder = make_pool(tmp_path, play_against_latest_model_ratio=0.0, window=2, swap_steps=1)
    drawn = []
    for _ in range(60):
        pool.count(2)
        drawn.append(pool.opponent)
    assert sorted(int(path.name) for path in (folder.path / "opponents").iterdir()) == [2, 30, 60, 90, 120]
    assert pool.versions == ["@90", "@120"]
    assert set(drawn[:10]) == {"@2", "random"}
    assert set(drawn[-15:-2]) == {"@60", "@90", "random"}  # before the last version


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, {LATEST}), (0.0, {"random"})])
def test_the_ratio_is_the_probability_of_the_agents_in_training(tmp_path, ratio, expected):
    pool, _ = make_pool(tmp_path, opponents=["random"], play_against_latest_model_ratio=ratio, swap_steps=5)
    drawn = set()
    for _ in range(20):
        pool.count(5)
        drawn.add(pool.opponent)
    assert drawn == expected and pool.versions == []


def test_the_opponent_is_drawn_again_after_swap_steps_only(tmp_path):
    pool, _ = make_pool(tmp_path, swap_steps=10)
    draws = count()
    pool._draw = lambda: str(next(draws))
    drawn = []
    for _ in range(10):
        pool.count(3)
        drawn.append(pool.opponent)
    assert drawn == ["0", "0", "0", "1", "1", "1", "2", "2", "2", "3"]


@pytest.mark.parametrize(("change", "expected"), [(None, "abab"), (6, "aaab")])
def test_teams_learn_in_turn_by_episodes_or_by_steps(tmp_path, change, expected):
    pool, folder = make_pool(tmp_path, team_change=change)
    evaluation = EvaluationOpponents(folder.load_settings(), folder, pool)
    chosen = ""
    for game in range(4):
        chosen += pool.choose_team(["a", "b"], game)
        pool.count(2)
        assert evaluation.choose_team(["a", "b"], game) == "abab"[game]
    assert chosen == expected


def act(pool, opponent, role="left"):
    """Return the actions of an opponent, and its memories, for the first observations."""
    step = pool.training.adapter.reset(0)[role]
    pool.rng = np.random.default_rng(0)
    memory = np.full((len(step.lane), pool.get_state_size(role)), 0.5, np.float32)
    return pool.act(opponent, role, step, memory)


def test_a_version_keeps_its_weights_and_acts_with_the_generator_of_the_pool(tmp_path):
    pool, _ = make_pool(tmp_path)
    pool.count(1)
    before, live = act(pool, LATEST), pool.training.get("left").agent.rng.bit_generator.state
    pool.training.get("left").learner.parameters.vector.add_(0.5)
    for played, expected in zip(act(pool, "@1"), before, strict=True):
        np.testing.assert_array_equal(played, expected)
    assert (act(pool, LATEST)[1] != before[1]).any()
    assert pool.training.get("left").agent.rng.bit_generator.state == live


def test_another_run_and_random_actions_are_opponents(tmp_path):
    other = train_run(new_run(tmp_path, "other", RUN))
    pool, _ = make_pool(tmp_path)
    assert act(pool, f"other@{int(other.folder.name)}")[1].any()
    actions, memory = act(pool, "random")
    assert set(actions.ravel()) <= {0, 1, 2} and (memory == 0.5).all()


def test_a_resumed_run_continues_its_ratings_and_leaves_out_versions_that_are_missing(tmp_path):
    folder = new_run(tmp_path, "run", RUN)
    train_run(folder)
    table = read_table(folder.path / "metrics.csv")
    assert [row for row in table.rows if row["self_play/elo/left"]]
    copy = copy_shortened(folder, "copy", 3)
    shutil.rmtree(copy.path / "opponents" / "120")
    pool, _ = make_pool(tmp_path)
    pool._folder = copy
    copy.find_latest().restore_states({"opponents": pool})
    assert pool.ratings and "@120" not in pool.versions and pool.versions
    assert isinstance(copy.find_latest().counters, Counters)


@pytest.mark.parametrize(
    ("config", "base", "message"),
    [
        ({"opponents": ["nowhere"]}, {}, "opponent_config.opponents nowhere: there is no such run"),
        ({"opponents": ["probe"]}, {}, "probe has no role left with the observations and actions of this run"),
        ({"evaluation_opponent": "later"}, {}, "opponent_config.opponents later: there is no such run"),
        ({}, {"runtime": "WORKERS"}, "opponent_config.opponents is for runtime LOCAL, not for WORKERS"),
        ({}, {"env_type": "PROBE", "env_name": "chain"}, "all agents are of the role 'agent'; opponents need"),
    ],
)
def test_opponents_that_cannot_play_are_an_error(tmp_path, config, base, message):
    if config.get("opponents") == ["probe"]:
        train_run(new_run(tmp_path, "probe", "probe"))
    tree = new_run(tmp_path, "source", RUN, **base).load_settings().tree
    own = {**tree["opponent_config"], "play_against_latest_model_ratio": 0.0, "swap_steps": 1, **config}
    folder = RunFolder.create("fake/task", tmp_path / "envs/fake/task", "run", {**tree, "opponent_config": own})
    with pytest.raises(UserError, match=message):
        train(folder.load_settings(), folder, lambda line: None)


def test_self_play_learns_to_win_nim(tmp_path):
    """A player who leaves a multiple of 4 stones wins: with 7 stones the first move is to take 3."""
    pytest.importorskip("pettingzoo")
    source = tmp_path / "envs" / "fake" / "task"
    source.mkdir(parents=True)
    layer = {
        "base_config": {
            "env_type": "PETTINGZOO",
            "env_name": "tests.adapters.turns:Nim",
            "algorithm": "PPO",
            "n_envs": 32,
        },
        "ma_config": {"bob": {"agent": "ann"}},
        "opponent_config": {"opponents": ["past"], "save_steps": 1000, "swap_steps": 500},
        "ppo_config": {"rollout_length": 16, "learning_rate": 1e-3, "reward_normalization": None},
    }
    layer["base_config"] |= {"max_step": 12_000, "save_every": None}
    folder = RunFolder.create("fake/task", source, "nim", resolve([("test", layer)]).tree)
    train_run(folder)
    agent = algorithm.load(folder.path, disable_sample=True)
    taken = {}
    for stones in (7, 3, 2, 1):
        agent.reset()
        mask = np.arange(1, 4) <= stones
        obs = {"observation": np.array([stones, 50], np.float32), "action_mask": mask.astype(np.int8)}
        taken[stones] = int(agent.act(obs)) + 1
    assert taken == {7: 3, 3: 3, 2: 2, 1: 1}
    assert Path(folder.path / "opponents").is_dir()
