"""Initial settings: the play of random actions, and the rules, by spaces, by the play and under given settings."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import tests.adapters.spaced  # noqa: F401  # registers an environment
from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_spec
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts import suggested_settings
from algorithm.parts.suggested_settings import ProbeResult, RandomPlay, add_suggestions, play_randomly, suggest_settings
from algorithm.specs import ActionSpec, ObsSpec, Role

VECTOR = {"obs": ObsSpec((3,))}
IMAGE = {"obs": ObsSpec((1, 84, 84), "uint8", high=255)}
BUTTON = ActionSpec(branches=(2,))
SEVERAL = RandomPlay(rewards=np.array([5.0, -5.0]), episode_lengths=(1,), terminations=1)


def suggest(obs=VECTOR, action=BUTTON, play=SEVERAL, given=None, env_name="CartPole-v1", has_network=False):
    base = {"env_type": "GYM", "env_name": env_name, **(given or {}).pop("base_config", {})}
    given, roles = {"base_config": base, **(given or {})}, {"agent": Role(1, obs, action)}
    return add_suggestions(ProbeResult(given=given, roles=roles, play=play, has_network=has_network), None)


@pytest.mark.parametrize(
    ("obs", "action", "given", "algorithm", "n_envs"),
    [
        (VECTOR, ActionSpec(branches=(2,)), {}, "ACER", 4),
        (VECTOR, ActionSpec(2), {}, "SAC", 1),
        (VECTOR, ActionSpec(1, (2,)), {}, "ACER", 8),
        (IMAGE, ActionSpec(branches=(2,)), {}, "ACER", 8),
        (IMAGE, ActionSpec(2), {}, "ACER", 8),
        (VECTOR, ActionSpec(2), {"acer_config": {"gamma": 0.9}}, "ACER", 8),
        (VECTOR, ActionSpec(2), {"base_config": {"algorithm": "PPO"}}, "PPO", 8),
        (VECTOR, ActionSpec(2), {"base_config": {"n_envs": 3}}, "SAC", 3),
        (VECTOR, ActionSpec(branches=(2,)), {"sac_config": {"gamma": 0.9}}, "SAC", 8),
    ],
)
def test_the_spaces_determine_the_algorithm_and_the_environments(obs, action, given, algorithm, n_envs):
    settings = resolve([("test", suggest(obs, action, given=given).tree)])
    assert (settings.base.algorithm, settings.base.n_envs) == (algorithm, n_envs)
    if algorithm == "SAC":
        assert settings.agent.replay_ratio == n_envs  # one update for each env step


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([5.0, -5.0], {"reward_scale": 0.01}),
        ([-1.0] * 9, {"reward_scale": 0.05}),
        ([-1.0] * 9 + [-100.0], {"reward_scale": 0.05}),
        ([0.0, 0.0, 0.0, 5.0], {"reward_scale": 0.01}),
        ([0.0] * 99 + [5.0], {"reward_normalization": "return_std"}),
        ([0.0] * 9, {"reward_normalization": "return_std"}),
        ([], {"reward_normalization": "return_std"}),
    ],
)
def test_rewards_are_scaled_by_their_size_unless_they_are_rare(rewards, expected):
    suggested = suggest(play=RandomPlay(rewards=np.array(rewards), terminations=1))
    chosen = {key: value for key, value in suggested.tree["acer_config"].items() if key.startswith("reward_")}
    assert chosen == expected
    is_unknown = suggested.reasons.get("acer_config.reward_normalization") == "the size of rewards is not known"
    assert is_unknown == (not rewards)


def test_rewards_that_are_clipped_have_the_size_of_the_limit():
    play = RandomPlay(rewards=np.full(9, -7.0), terminations=1)
    assert suggest(play=play, given={"acer_config": {"reward_clip": 0.5}}).tree["acer_config"]["reward_scale"] == 0.1


@pytest.mark.parametrize("algorithm", ["A2C", "PPO", "POCA"])
def test_on_policy_agents_divide_rewards_by_their_returns_and_by_nothing_else(algorithm):
    agent = resolve([("test", suggest(given={"base_config": {"algorithm": algorithm}}).tree)]).agent
    assert (agent.reward_normalization, agent.reward_scale) == ("return_std", 1.0)


@pytest.mark.parametrize("none", [None, {}])
def test_a_user_may_want_no_explorer(none):
    tree = suggest(action=ActionSpec(2), given={"explorer": none, "base_config": {"max_step": 100}}).tree
    assert not tree["explorer"] and tree["nn_config"]["kind"] == "residual"
    variant = [("variant", {"explorer": {"action_noise": [0, 1]}}), ("--set", {"explorer": None})]
    assert resolve(variant).explorer == {}
    with pytest.raises(UserError, match="explorer is False; it must be a mapping"):
        resolve([("--set", {"explorer": False})])


class Pictured(gymnasium.Env):
    """An environment whose observation space is `space`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("shape", "name", "is_small"),
    [((96, 96, 3), None, True), ((3, 96, 96), None, False), ((96, 96, 3), "camera", False), ((48, 48, 3), None, False)],
)
def test_large_images_that_gymnasiums_wrappers_read_become_small(shape, name, is_small):
    pytest.importorskip("cv2")
    image = spaces.Box(0, 255, shape, np.uint8)
    space = spaces.Dict({name: image}) if name else image
    gymnasium.register("Pictured-v0", lambda: Pictured(space))
    tree = suggested_settings.suggest_settings(
        "test", {"base_config": {"env_type": "GYM", "env_name": "Pictured-v0"}}
    ).tree
    del gymnasium.registry["Pictured-v0"]
    assert ("env_wrappers" in tree["base_config"]) == is_small


@pytest.mark.parametrize(
    ("action", "terminations", "rewards", "repeats"),
    [
        (ActionSpec(branches=(2,)), 0, [-1.0, -1.0], True),
        (ActionSpec(branches=(2,)), 0, [0.0, 0.0], True),
        (ActionSpec(branches=(2,)), 1, [-1.0, -1.0], False),
        (ActionSpec(branches=(2,)), 0, [-1.0, -2.0], False),
        (ActionSpec(1, (2,)), 0, [-1.0, -1.0], False),
        (ActionSpec(1), 0, [-1.0, -1.0], False),
    ],
)
def test_actions_are_repeated_where_random_ones_made_no_difference(action, terminations, rewards, repeats):
    play = RandomPlay(rewards=np.array(rewards), terminations=terminations)

    def find(play):
        return "action_repeat" in suggest(action=action, play=play).tree.get("explorer", {})

    assert find(play) == repeats
    assert not find(replace(play, steps=200))  # less than an episode
    assert find(replace(play, steps=200, episode_lengths=(90,))) == repeats
    given = {"explorer": {"action_noise": [0, 0.1]}}
    assert "action_repeat" not in suggest(action=ActionSpec(branches=(2,)), play=play, given=given).tree["explorer"]


def test_a_table_learns_from_random_actions_unless_actions_are_repeated():
    table, noise = {"obs": ObsSpec((16,), "uint8", n_values=(16,))}, {"action_noise": [0.0, 0.1]}
    suggested = suggest(table)
    assert suggested.tree["explorer"] == noise
    assert suggested.tree["base_config"]["evaluate_every"] == 50_000  # 20 evaluations
    assert "explorer" not in suggest().tree
    same = RandomPlay(rewards=np.array([-1.0, -1.0]))
    assert suggest(table, play=same).tree["explorer"].keys() == {"action_repeat"}
    given = {"explorer": {"action_repeat": [0.0, 0.5]}}
    assert suggest(table, given=given).tree["explorer"] == given["explorer"]


def test_episodes_that_may_never_end_are_limited():
    endless = RandomPlay(rewards=np.ones(9))
    limited = suggest(play=endless, env_name="CliffWalking-v1")
    assert limited.tree["base_config"]["max_step_each_iter"] == 1000
    assert "no episode ended in 9 random steps" in limited.reasons["base_config.max_step_each_iter"]
    for play, env_name in ((SEVERAL, "CliffWalking-v1"), (endless, "CartPole-v1")):
        assert "max_step_each_iter" not in suggest(play=play, env_name=env_name).tree["base_config"]


# The environments have 500 steps, 200 steps, and no limit.
GAMMAS = [
    ("CartPole-v1", {}, 0.995),
    ("MountainCar-v0", {}, None),
    ("CliffWalking-v1", {}, None),
    ("CartPole-v1", {"base_config": {"max_step_each_iter": 50}}, None),
    ("CartPole-v1", {"base_config": {"env_args": {"max_episode_steps": 50}}}, None),
    ("MountainCar-v0", {"base_config": {"max_step_each_iter": 900}}, 0.995),
    ("CartPole-v1", {"acer_config": {"gamma": 0.9}}, 0.9),
    ("CartPole-v1", {"acer_config": {"gamma": 0.9999}}, 0.9999),
]


@pytest.mark.parametrize(("env_name", "given", "gamma"), GAMMAS)
def test_long_episodes_have_a_larger_discount_factor(env_name, given, gamma):
    tree = suggest(env_name=env_name, given=given).tree
    assert tree["acer_config"].get("gamma") == gamma
    expected = 10 * (1 - min(gamma or 0.99, 0.999)) / 5
    assert tree["acer_config"]["reward_scale"] == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize(
    ("obs", "rewards", "terminations", "coef"),
    [
        (VECTOR, [1.0, 2.0], 1, 0.0005),
        ({"obs": ObsSpec((9,), "uint8", n_values=(9,))}, [1.0, 2.0], 1, 0.002),
        (VECTOR, [1.0, 1.0], 0, 0.005),
        (VECTOR, [], 0, 0.001),
    ],
)
def test_the_entropy_bonus_has_a_fraction_of_the_size_of_rewards(obs, rewards, terminations, coef):
    play = RandomPlay(rewards=np.array(rewards), terminations=terminations)
    assert suggest(obs, play=play).tree["acer_config"]["entropy_coef"] == coef


@pytest.mark.parametrize(
    ("side", "max_step", "rate", "schedule"),
    [(84, 100, 0.0005, "linear"), (10, 100, 0.002, "linear"), (10, None, 0.002, None)],
)
def test_acer_learns_images_with_rates_that_fall_if_the_run_ends(side, max_step, rate, schedule):
    image = {"obs": ObsSpec((4, side, side), "uint8")}
    section = suggest(image, given={"base_config": {"max_step": max_step}}).tree["acer_config"]
    assert (section["learning_rate"], section.get("learning_rate_schedule")) == (rate, schedule)


@pytest.mark.parametrize(("max_step", "starts"), [(300, 30), (5, 1), (10_000, None), (None, None)])
@pytest.mark.parametrize("algorithm", ["SAC", "REACTOR"])
def test_a_short_run_starts_to_learn_early(algorithm, max_step, starts):
    tree = suggest(given={"base_config": {"algorithm": algorithm, "max_step": max_step}}).tree
    section = tree.get(f"{algorithm.lower()}_config", {})
    assert section.get("learning_starts") == starts
    assert not {"reward_scale", "reward_normalization"} & set(section)  # both keep their own


@pytest.mark.parametrize(
    ("action", "given", "expected"),
    [
        (ActionSpec(1), {}, {"critic", "policy", "alpha", "schedule", "final_fraction"}),
        (ActionSpec(1), {"sac_config": {"use_auto_alpha": False}}, {"critic", "policy", "schedule", "final_fraction"}),
        (ActionSpec(1), {"base_config": {"max_step": None}}, set()),
        (ActionSpec(branches=(2,)), {"base_config": {"algorithm": "SAC"}}, set()),
    ],
)
def test_the_learning_rates_of_sac_fall_if_actions_are_continuous_and_the_run_ends(action, given, expected):
    tree = suggest(action=action, given=given).tree
    names = {name.removeprefix("learning_rate_") for name in tree["sac_config"] if name.startswith("learning_rate_")}
    assert names == expected
    resolve([("test", tree)])


@pytest.mark.parametrize(("max_step", "start"), [(100_000, 5000), (15_000, 750), (10, 1)])
def test_sac_learns_continuous_actions_with_residual_networks_and_keeps_every_step(max_step, start):
    tree = suggest(action=ActionSpec(2), given={"base_config": {"max_step": max_step}}).tree
    assert tree["nn_config"] == {"kind": "residual", "units": 64}
    assert tree["explorer"] == {"noise_repeat": 16} and tree["sac_config"]["critic"] == "categorical"
    assert tree["replay_config"]["capacity"] == max_step
    assert tree["sac_config"]["random_steps"] == tree["sac_config"]["learning_starts"] == start


@pytest.mark.parametrize(
    "changes",
    [{"has_network": True}, {"given": {"explorer": {"action_noise": [0, 1]}}}, {"action": ActionSpec(1, (2,))}],
)
def test_a_network_or_an_explorer_of_the_user_is_kept(changes):
    base = {"base_config": {"algorithm": "SAC"}}
    tree = suggest(**{"action": ActionSpec(2), "given": base, **changes}).tree
    assert "nn_config" not in tree and "noise_repeat" not in tree.get("explorer", {})
    assert "critic" not in tree["sac_config"]


def test_given_settings_are_kept_and_have_no_reason():
    given = {"acer_config": {"reward_scale": 7.0, "batch_size": 3}, "base_config": {"n_envs": 5}}
    suggested = suggest(given=given)
    assert suggested.tree["acer_config"] | {"reward_scale": 7.0, "batch_size": 3} == suggested.tree["acer_config"]
    assert suggested.tree["base_config"]["n_envs"] == 5
    assert not {"acer_config.batch_size", "acer_config.reward_scale", "base_config.n_envs"} & suggested.reasons.keys()
    assert "acer_config.trust_region_delta" in suggested.reasons


@pytest.mark.parametrize(
    ("env_name", "algorithm", "scale", "repeats"),
    [
        ("CartPole-v1", "ACER", 0.05, False),
        ("Acrobot-v1", "ACER", 0.05, True),
        ("MountainCar-v0", "ACER", 0.1, True),
        ("FrozenLake-v1", "ACER", None, False),
        ("Pendulum-v1", "SAC", None, False),
    ],
)
def test_known_environments(env_name, algorithm, scale, repeats):
    tree = suggested_settings.suggest_settings("test", {"base_config": {"env_type": "GYM", "env_name": env_name}}).tree
    assert tree["goal"]["return"] == find_spec(env_name).reward_threshold
    assert tree["base_config"]["algorithm"] == algorithm
    assert tree[f"{algorithm.lower()}_config"].get("reward_scale") == scale
    assert ("action_repeat" in tree.get("explorer", {})) == repeats


@pytest.mark.parametrize("shorter", [{"max_step_each_iter": 200}, {"env_args": {"max_episode_steps": 200}}])
def test_episodes_shorter_than_the_registered_ones_have_no_registered_goal(shorter):
    base = {"env_type": "GYM", "env_name": "CartPole-v1", **shorter}
    assert suggested_settings.suggest_settings("test", {"base_config": base}).tree["goal"]["return"] is None


def play(name, seed=0, **args):
    return play_randomly(GymAdapter, EnvConfig(name=name, args=args), seed)


def test_rewards_and_ends_of_episodes_are_counted():
    cartpole = play("CartPole-v1")
    assert cartpole.failure is None
    assert cartpole.terminations == len(cartpole.episode_lengths) > 20
    assert sum(cartpole.episode_lengths) <= len(cartpole.rewards) <= suggested_settings.MAX_STEPS
    assert set(cartpole.rewards) == {1}
    car = play("MountainCar-v0")
    assert set(car.episode_lengths) == {200} and not car.terminations and set(car.rewards) == {-1}
    assert car.steps == suggested_settings.MAX_STEPS
    assert 0 < play("FrozenLake-v1").rewards.mean() < 0.1


def test_the_same_seed_repeats_the_probe():
    one, other, different = (play("Pendulum-v1", seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.rewards, other.rewards)
    assert one.episode_lengths == other.episode_lengths
    assert not np.array_equal(one.rewards, different.rewards)


def test_a_slow_environment_is_probed_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(suggested_settings, "MAX_SECONDS", 0.0)
    short = play("CartPole-v1")
    assert (len(short.rewards), short.steps, short.is_complete) == (0, 1, False)
    assert short.failure == "the environment executed only 1 actions in 0 s"
    monkeypatch.setattr(suggested_settings, "MIN_STEPS", 1)
    assert play("CartPole-v1").failure is None


def test_a_failure_or_a_reward_that_is_not_finite_ends_the_probe():
    for reward in (np.nan, -np.inf):
        failed = play("tests.adapters.spaced:Invalid-v0", reward=reward)
        assert failed.failure == "a reward of role 'agent' is NaN or infinite after 1 actions"
    failed = play("tests.adapters.spaced:Fragile-v0", vectorization_mode="vector_entry_point")
    assert "a motor" in failed.failure and "\n" not in failed.failure
    assert len(failed.rewards) == 0  # of which nothing is concluded


@pytest.mark.parametrize("mask", [None, [1, 0, 1, 0, 1], [0, 0, 0, 1, 1]])
def test_random_actions_are_uniform_and_allowed(mask):
    masks = mask and np.tile(np.array(mask, np.uint8), (6000, 1))
    actions = ActionSpec(2, (3, 2)).sample(np.random.default_rng(0), 6000, masks)
    assert actions.dtype == np.float32 and actions.shape == (6000, 4)
    assert np.abs(actions[:, :2]).max() <= 1 and abs(actions[:, :2].mean()) < 0.05
    assert actions[:, :2].std() == pytest.approx(3**-0.5, rel=0.1)
    for column, part in zip(actions[:, 2:].T, np.split(np.array(mask or [1] * 5), [3]), strict=True):
        values, counts = np.unique(column, return_counts=True)
        assert values.tolist() == (np.flatnonzero(part) if part.any() else np.arange(len(part))).tolist()
        assert np.ptp(counts) < 300


@pytest.mark.parametrize(
    ("given", "has_network", "side"), [({}, False, 42), ({}, True, 84), ({"screen_size": 50}, False, 50)]
)
def test_the_images_of_atari_are_small_unless_their_size_or_the_network_is_given(given, has_network, side, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(suggested_settings, "MAX_STEPS", 100)
    env_args = {"repeat_action_probability": 0.0, **given}
    tree = {"base_config": {"env_type": "ATARI", "env_name": "Pong", "env_args": env_args}}
    suggested = suggest_settings("test", tree, has_network=has_network)
    assert suggested.roles["agent"].obs_specs["obs"].shape == (1, side, side)
    assert suggested.tree["base_config"]["env_args"].get("screen_size", 84) == side
    assert suggested.tree["base_config"]["env_args"].items() >= env_args.items()
