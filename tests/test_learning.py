"""Tests that agents learn known values and decisions, and reach the goals of the environment folders."""

from itertools import count

import numpy as np
import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.parts.env_folder import PROJECT_ENVS
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.runs.trained_agent import load
from tests.builders import PAIRS
from tests.envs.folders import FOLDERS

PROBE = {"env_type": "PROBE", "n_envs": 4, "log_every": 1000}
SECTIONS = {
    "ACER": {"learning_rate": 0.003, "learning_starts": 100, "reward_scale": 1.0, "replay_ratio": 4},
    "SAC": {
        "learning_rate_critic": 0.02,
        "learning_rate_policy": 0.02,
        "learning_rate_alpha": 0.02,
        "learning_rate_schedule": "linear",
        "tau": 0.2,
        "batch_size": 32,
        "learning_starts": 100,
        "alpha_critic_scale": 0.0,
        "sequence_length": 3,
    },
    "A2C": {"learning_rate": 0.01, "reward_normalization": None, "entropy_coef": 0.001},
    "PPO": {
        "learning_rate": 0.01,
        "reward_normalization": None,
        "rollout_length": 16,
        "epochs": 4,
        "minibatches": 2,
        "max_grad_norm": 10.0,
    },
    "REACTOR": {
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
        "reward_normalization": None,
        "v_min": -60.0,
        "v_max": 20.0,
        "sequence_length": 16,
        "replay_ratio": 4.0,
        "learning_starts": 100,
        "update_target_per_step": 20,
    },
}
NUMBERS = count()  # of the runs of this process
BEST = {"choice": [0, 1], "chain": [1, 1, 1]}  # the best action of each state
NOISY = "from algorithm.networks import Blueprint, NoisyMlp\nblueprint = Blueprint(body=NoisyMlp(32))"
# With a constant learning rate the values of ACER would still change with every batch.
CONVERGING = {"learning_rate": 0.01, "learning_rate_schedule": "linear"}


def train_quietly(source, *layers):
    """Train a new run with the networks and the simulator in `source`. Return its run folder and result."""
    settings = resolve([("test", layer) for layer in layers])
    folder = RunFolder.create("test", source, f"run{next(NUMBERS)}", settings.tree)
    return folder, train(settings, folder, lambda line: None)


def learn(tmp_path, algorithm, probe, max_step, changes, nn="", **base):
    """Train an agent on a probe. Return it with its saved weights, every state, its actions there, and the result."""
    if nn:
        (tmp_path / "nn.py").write_text(nn)
    section = {"gamma": 0.9, **SECTIONS[algorithm], **changes}
    base = {**PROBE, "env_name": probe, "max_step": max_step, "algorithm": algorithm, **base}
    folder, result = train_quietly(tmp_path, {"base_config": base, f"{algorithm.lower()}_config": section})
    player, states = restore(folder)
    assert not player.agent.policy.training
    return player.agent, states, player.act(states.numpy()).tolist(), result


def restore(folder):
    """Return a player with the saved weights of a run, and every state of its probe."""
    states = torch.eye(*folder.read_roles()["agent"].obs_specs["obs"].shape)
    return load(folder.path, disable_sample=True), states


def learn_values(tmp_path, algorithm, probe, max_step, changes):
    """Train an agent on a probe. Return the values of its critic in every state."""
    agent, states, *_ = learn(tmp_path, algorithm, probe, max_step, changes)
    return read_values(algorithm, agent, states, {**SECTIONS[algorithm], **changes})


@torch.no_grad()
def read_values(algorithm, agent, states, section):
    """Return the values of the critic of an agent in every state."""
    if algorithm == "SAC":
        return agent.critics(agent.critics.torso.encode({"obs": states})).mean(0)
    features = agent.policy.torso.encode({"obs": states})
    if algorithm == "ACER":
        return agent.policy.compute_outputs(features).split(agent.policy.heads.sizes, -1)[1]
    if algorithm != "REACTOR":
        return agent.split_outputs(agent.policy.compute_outputs(features))[1]
    critic = agent.policy.critic
    values = critic.head(critic.step(features, torch.zeros(len(states), 0))[0])
    if section.get("critic") == "scalar":
        return values
    v, a = values.split([51, values.shape[-1] - 51], -1)
    logits = v.unsqueeze(-2) + a.unflatten(-1, (-1, 51))
    return logits.softmax(-1) @ torch.linspace(section["v_min"], section["v_max"], 51)


def slow_case(*values):
    """Return a test parameter that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


REACTORS = ({}, {"distributional": "recursive"}, {"critic": "scalar"}, {"policy_gradient": "truncated_importance"})


def list_reactors(max_step):
    """Return the cases of Reactor, of which the first is not slow."""
    return [("REACTOR", max_step, {}), *(slow_case("REACTOR", max_step, changes) for changes in REACTORS[1:])]


def list_pairs(max_step, *quick):
    """Return the cases of ACER: every estimator with every critic, of which those in `quick` are not slow."""
    cases = [("ACER", max_step, {"estimator": pair[0], "critic": pair[1], **CONVERGING}) for pair in PAIRS]
    return [case if pair in quick else slow_case(*case) for case, pair in zip(cases, PAIRS, strict=True)]


@pytest.mark.parametrize(
    ("algorithm", "max_step", "changes"),
    [
        slow_case("SAC", 1600, {"n_step": 1}),
        ("SAC", 1600, {"n_step": 3}),
        slow_case("A2C", 20_000, {}),
        ("PPO", 8000, {}),
        *list_reactors(2500),
        *list_pairs(6000, ("vtrace", "state_value")),
    ],
    ids=str,
)
def test_a_time_limit_is_not_a_termination(tmp_path, algorithm, max_step, changes):
    values = learn_values(tmp_path, algorithm, "truncation", max_step, changes)
    np.testing.assert_allclose(values, 10, atol=0.5)  # as a termination it would be 4.4


@pytest.mark.parametrize(
    ("algorithm", "max_step", "changes"),
    [
        ("SAC", 2400, {"n_step": 1}),
        slow_case("SAC", 2400, {"n_step": 3, "estimator": "retrace"}),
        *list_reactors(5000),
        *list_pairs(12_000, ("retrace", "action_value")),
    ],
    ids=str,
)
def test_the_next_episode_does_not_leak(tmp_path, algorithm, max_step, changes):
    """The values are -41 and 10; with a leak from the next episode they would be about -68 and -32."""
    values = learn_values(tmp_path, algorithm, "leak", max_step, changes)
    np.testing.assert_allclose(values[0], -41, atol=2)
    np.testing.assert_allclose(values[1], 10, atol=1)


@pytest.mark.parametrize(
    ("algorithm", "probe", "max_step", "changes", "base"),
    [
        slow_case("SAC", "choice", 1200, {"target_d_alpha": 0.2, "alpha_critic_scale": 1.0}, {}),
        ("SAC", "chain", 1200, {"target_d_alpha": 0.2, "alpha_critic_scale": 1.0, "n_step": 3}, {}),
        slow_case("SAC", "chain", 1200, {"target_d_alpha": 0.2, "discrete_dqn_like": True}, {}),
        slow_case("A2C", "chain", 20_000, {}, {}),
        slow_case("PPO", "chain", 8000, {}, {}),
        *(
            slow_case("REACTOR", probe, 2000, {"v_min": -2.0, "v_max": 2.0, **changes}, {})
            for probe in BEST
            for changes in REACTORS
        ),
        slow_case("ACER", "choice", 6000, {"trust_region_space": "logits"}, {}),
        slow_case("ACER", "choice", 6000, {"trust_region_space": "probs"}, {}),
        slow_case("ACER", "chain", 6000, {"trust_region_space": "logits"}, {}),
        ("ACER", "chain", 6000, {"trust_region_space": "probs"}, {}),
        slow_case("ACER", "choice", 6000, {}, {"precision": "bfloat16_forced"}),
        *(slow_case("ACER", probe, 6000, {"trust_region": "full", "average_policy_decay": 0.9}, {}) for probe in BEST),
        slow_case("ACER", "choice", 6000, {"entropy_coef": 0.0}, {"nn": NOISY}),
        ("ACER", "chain", 6000, {"entropy_coef": 0.0}, {"nn": NOISY}),
    ],
    ids=str,
)
def test_simple_decisions_are_learned(tmp_path, algorithm, probe, max_step, changes, base):
    *_, actions, result = learn(tmp_path, algorithm, probe, max_step, changes, **base)
    assert actions == BEST[probe]
    assert algorithm != "ACER" or result.returns["agent"] >= 0.85


def test_evaluation_does_not_affect_training(tmp_path):
    weights = []
    for every, greedy in [(None, True), (300, True), (300, False)]:
        layer = read_variant(PROJECT_ENVS / "gym/cartpole/config.yaml", "default")
        base = {"max_step": 1000, "evaluate_every": every, "evaluate_greedy": greedy}
        folder, _ = train_quietly(tmp_path, layer, {"base_config": base})
        weights.append(folder.find_latest().weights("agent")["parameters"]["acer"])
    assert [each.equal(weights[0]) for each in weights] == [True] * 3


# Folders whose default variant has neither an explorer nor a bonus, and does not reach its goal without one; variants
# with a bonus are tested.
UNREACHED = ["exploration/deep_sea", "exploration/noisy_tv", "gym/mountain_car"]
LONGEST = 1_000_000  # env steps of the largest goal that is tested: it takes minutes on one core
QUICK = {"cartpole", "coins", "recall"}  # whose first seed is not marked slow


@pytest.mark.parametrize(
    "path", ["hybrid/parking sac", "gym/mountain_car episodic", "gym/pendulum sac", "exploration/deep_sea ppo_rnd"]
)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_environment_reaches_its_goal_by_a_variant(path):
    task, variant = path.split()
    assert_reached(PROJECT_ENVS / task / "config.yaml", variant, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_a_folder_without_a_network_and_settings_of_the_algorithm_learns(tmp_path, seed):
    base = {"env_name": "Acrobot-v1", "algorithm": "ACER", "n_envs": 16}
    limits = {"seed": seed, "max_step": 60_000, "evaluate_every": 60_000}
    _, result = train_quietly(tmp_path, {"base_config": base}, {"base_config": limits})
    assert result.evaluation["agent"].mean >= -100


def learning_tests():
    """Yield every environment folder with a goal of at most `LONGEST` env steps, with three seeds."""
    for name in FOLDERS:
        config = PROJECT_ENVS / name / "config.yaml"
        goal = resolve([("test", read_variant(config, "default"))]).goal
        has_goal = goal is not None and goal.return_ is not None
        is_tested = has_goal and goal.step_budget <= LONGEST and name not in UNREACHED
        for seed in range(3 if is_tested else 0):
            slow = [pytest.mark.slow, pytest.mark.timeout(600)] if seed or config.parent.name not in QUICK else []
            yield pytest.param(config, seed, marks=slow, id=f"{config.parent.name}-{seed}")


@pytest.mark.parametrize(("config", "seed"), list(learning_tests()))
def test_an_environment_reaches_its_goal(config, seed):
    assert_reached(config, "default", seed)


def assert_reached(config, variant, seed):
    """Train a variant of an environment folder, and check that it reaches its goal within the step budget."""
    goal = resolve([("test", read_variant(config, variant))]).goal
    limit = {"base_config": {"seed": seed, "max_step": goal.step_budget}}
    _, result = train_quietly(config.parent, read_variant(config, variant), limit)
    assert result.goal_reached
    assert result.evaluation["agent"].interval[1] >= goal.return_  # of other episodes than those that confirmed it
    assert result.counters.env_steps <= goal.step_budget
