"""Tests that agents learn known values and decisions, and reach the goals of the environment folders."""

import shutil

import numpy as np
import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.env_folder import PROJECT_ENVS
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.runs.trained_agent import load
from algorithm.training import optimizers
from tests.builders import PAIRS
from tests.envs.folders import FOLDERS

PROBE = {
    "base_config": {"env_type": "PROBE", "n_envs": 4, "log_every": 1000},
    "acer_config": {
        "gamma": 0.9,
        "learning_rate": 0.003,
        "learning_starts": 100,
        "reward_scale": 1.0,
        "replay_ratio": 4,
    },
}


def train_quietly(tmp_path, *layers):
    """Train a new run. Return its settings, run folder and result."""
    settings = resolve([("test", layer) for layer in layers])
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    name = f"run{len(list((tmp_path / 'runs').rglob('config.yaml'))) if (tmp_path / 'runs').exists() else 0}"
    folder = RunFolder.create("test", source, name, settings.tree)
    return settings, folder, train(settings, folder, lambda line: None)


def restore(settings, folder):
    """Return the agent of a run with its saved weights, and every state of its probe."""
    role = folder.read_roles()["agent"]
    agent = ComponentsBuilder(settings, folder, folder.find_latest(), print)("agent", role).agent
    return agent, torch.eye(role.obs_specs["obs"].shape[0])


def act_greedily(folder, states):
    """Return the greedy action of the agent of a run in every state."""
    return load(folder.path, disable_sample=True).act(states.numpy()).tolist()


def evaluate_states(settings, folder):
    """Return the critic's values and the policy's probabilities of every state of a probe after training."""
    agent, states = restore(settings, folder)
    with torch.no_grad():
        outputs = agent.policy.compute_outputs(agent.policy.torso.encode({"obs": states}))
        logits, q = outputs.split(agent.policy.heads.sizes, -1)
    return q.numpy(), logits.softmax(-1).numpy()


SAC_PROBE = {
    "base_config": {"algorithm": "SAC"},
    "sac_config": {
        "gamma": 0.9,
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
}


def train_sac(tmp_path, env_name, max_step, changes):
    """Train SAC on a probe. Return the mean of its critics and the greedy action of every state."""
    probe = {"base_config": {"env_name": env_name, "max_step": max_step}, "sac_config": changes}
    settings, folder, _ = train_quietly(tmp_path, PROBE, SAC_PROBE, probe)
    agent, states = restore(settings, folder)
    with torch.no_grad():
        q = agent.critics(agent.critics.torso.encode({"obs": states})).mean(0)
    return q.numpy(), act_greedily(folder, states)


def assert_no_leak(values):
    """Check the values of the probe `leak`: -41 and 10, with a leak from the next episode about -68 and -32."""
    np.testing.assert_allclose(values[0], -41, atol=2)
    np.testing.assert_allclose(values[1], 10, atol=1)


def slow_case(*values):
    """Return a test parameter that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("changes", [slow_case({"n_step": 1}), {"n_step": 3}], ids=str)
def test_a_time_limit_is_not_a_termination_in_sac(tmp_path, changes):
    learned, _ = train_sac(tmp_path, "truncation", 1600, changes)
    np.testing.assert_allclose(learned, 10, atol=0.5)  # as a termination it would be 4.4


@pytest.mark.parametrize("changes", [{"n_step": 1}, slow_case({"n_step": 3, "estimator": "retrace"})], ids=str)
def test_the_next_episode_does_not_leak_in_sac(tmp_path, changes):
    learned, _ = train_sac(tmp_path, "leak", 2400, changes)
    assert_no_leak(learned)


@pytest.mark.parametrize(
    ("probe", "best", "changes"),
    [
        slow_case("choice", [0, 1], {"alpha_critic_scale": 1.0}),
        ("chain", [1, 1, 1], {"alpha_critic_scale": 1.0, "n_step": 3}),
        slow_case("chain", [1, 1, 1], {"discrete_dqn_like": True}),
    ],
    ids=str,
)
def test_sac_learns_simple_decisions(tmp_path, probe, best, changes):
    assert train_sac(tmp_path, probe, 1200, {"target_d_alpha": 0.2, **changes})[1] == best


ON_POLICY_PROBE = {
    "a2c_config": {"gamma": 0.9, "learning_rate": 0.01, "reward_normalization": None, "entropy_coef": 0.001},
    "ppo_config": {
        "gamma": 0.9,
        "learning_rate": 0.01,
        "reward_normalization": None,
        "rollout_length": 16,
        "epochs": 4,
        "minibatches": 2,
        "max_grad_norm": 10.0,
    },
}


def learn_state_values(tmp_path, algorithm, env_name, max_step):
    """Train an agent without a replay on a probe. Return the values and the greedy action of every state."""
    probe = {"base_config": {"env_name": env_name, "max_step": max_step, "algorithm": algorithm}}
    settings, folder, _ = train_quietly(tmp_path, PROBE, ON_POLICY_PROBE, probe)
    agent, states = restore(settings, folder)
    with torch.no_grad():
        _, v, _ = agent.split_outputs(agent.policy.compute_outputs(agent.policy.torso.encode({"obs": states})))
    return v.numpy(), act_greedily(folder, states)


@pytest.mark.parametrize(("algorithm", "max_step"), [slow_case("A2C", 20_000), ("PPO", 8000)])
def test_agents_without_a_replay_learn_the_values_of_probes(tmp_path, algorithm, max_step):
    v, _ = learn_state_values(tmp_path, algorithm, "truncation", max_step)
    np.testing.assert_allclose(v, 10, atol=0.5)  # as a termination it would be 4.4
    assert learn_state_values(tmp_path, algorithm, "chain", max_step)[1] == [1, 1, 1]


def learn_with_reactor(tmp_path, env_name, max_step, **changes):
    """Train Reactor on a probe. Return the values of its critic and its greedy action in every state."""
    section = {
        "gamma": 0.9,
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
        "reward_normalization": None,
        "v_min": -60.0,
        "v_max": 20.0,
        "sequence_length": 16,
        "replay_ratio": 4.0,
        "learning_starts": 100,
        "update_target_per_step": 20,
        **changes,
    }
    base = {"env_name": env_name, "max_step": max_step, "algorithm": "REACTOR"}
    settings, folder, _ = train_quietly(tmp_path, PROBE, {"base_config": base, "reactor_config": section})
    agent, states = restore(settings, folder)
    network = agent.policy
    with torch.no_grad():
        features, _ = network.critic.step(network.torso.encode({"obs": states}), torch.zeros(len(states), 0))
        values = network.critic.head(features)
    if section.get("critic") != "scalar":
        v, a = values.split([51, values.shape[-1] - 51], -1)
        logits = v.unsqueeze(-2) + a.unflatten(-1, (-1, 51))
        values = logits.softmax(-1) @ torch.linspace(section["v_min"], section["v_max"], 51)
    return values.numpy(), act_greedily(folder, states)


REACTORS = {
    "categorical": {},
    "recursive": {"distributional": "recursive"},
    "scalar": {"critic": "scalar"},
    "truncated importance": {"policy_gradient": "truncated_importance"},
}
every_reactor = pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=[pytest.mark.slow] * (name != "categorical"))
        for name, changes in REACTORS.items()
    ],
)


@every_reactor
def test_reactor_learns_the_values_of_probes(tmp_path, changes):
    values, _ = learn_with_reactor(tmp_path, "truncation", 2500, **changes)
    np.testing.assert_allclose(values, 10, atol=0.5)  # as a termination it would be 4.4
    values, _ = learn_with_reactor(tmp_path, "leak", 5000, **changes)
    assert_no_leak(values)


@pytest.mark.slow
@every_reactor
def test_reactor_learns_simple_decisions(tmp_path, changes):
    for probe, best in (("choice", [0, 1]), ("chain", [1, 1, 1])):
        assert learn_with_reactor(tmp_path, probe, 2000, v_min=-2.0, v_max=2.0, **changes)[1] == best


def learn_values(tmp_path, env_name, max_step, estimator, critic):
    """Train ACER on a probe. Return the critic's values of every state."""
    probe = {
        "base_config": {"env_name": env_name, "max_step": max_step},
        # With a constant learning rate the values would still change with every batch.
        "acer_config": {
            "estimator": estimator,
            "critic": critic,
            "learning_rate": 0.01,
            "learning_rate_schedule": "linear",
        },
    }
    settings, folder, _ = train_quietly(tmp_path, PROBE, probe)
    return evaluate_states(settings, folder)[0]


QUICK_PAIRS = [("retrace", "action_value"), ("vtrace", "state_value")]
every_pair = pytest.mark.parametrize(
    ("estimator", "critic"), [pair if pair in QUICK_PAIRS else slow_case(*pair) for pair in PAIRS]
)


@every_pair
def test_a_time_limit_is_not_a_termination(tmp_path, estimator, critic):
    learned = learn_values(tmp_path, "truncation", 6000, estimator, critic)
    np.testing.assert_allclose(learned, 10, atol=0.5)  # as a termination it would be 4.4


@every_pair
def test_the_next_episode_does_not_leak(tmp_path, estimator, critic):
    learned = learn_values(tmp_path, "leak", 12000, estimator, critic)
    assert_no_leak(learned)


@pytest.mark.parametrize(
    ("probe", "space"),
    [("choice", "logits"), slow_case("choice", "probs"), slow_case("chain", "logits"), ("chain", "probs")],
)
def test_simple_decisions_are_learned(tmp_path, probe, space):
    layer = {"base_config": {"env_name": probe, "max_step": 6000}, "acer_config": {"trust_region_space": space}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    _, policy = evaluate_states(settings, folder)
    best = np.arange(2) if probe == "choice" else np.ones(3, int)
    assert (policy.argmax(-1) == best).all()


@pytest.mark.parametrize("probe", [slow_case("choice"), "chain"])
def test_simple_decisions_are_learned_in_a_full_trust_region(tmp_path, probe, monkeypatch):
    pairs, search = [], optimizers._line_search

    def record(vector, step, divergence, limit, max_halvings):
        metrics = search(vector, step, divergence, limit, max_halvings)
        policy = divergence.compute_policy()
        pairs.append(((divergence.weights * policy.kl(divergence.average)).sum().item(), limit.item()))
        return metrics

    monkeypatch.setattr(optimizers, "_line_search", record)
    layer = {
        "base_config": {"env_name": probe, "max_step": 6000},
        "acer_config": {"trust_region": "full", "average_policy_decay": 0.9},
    }
    _, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    best = [0, 1] if probe == "choice" else [1, 1, 1]
    assert act_greedily(folder, torch.eye(len(best))) == best
    assert len(pairs) == result.counters.updates
    assert all(after <= limit + 1e-6 for after, limit in pairs)


def test_a_simple_decision_is_learned_in_bfloat16(tmp_path):
    layer = {"base_config": {"env_name": "choice", "max_step": 6000, "precision": "bfloat16_forced"}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    assert (evaluate_states(settings, folder)[1].argmax(-1) == np.arange(2)).all()


NOISY = "from algorithm.networks import Blueprint, NoisyMlp\nblueprint = Blueprint(body=NoisyMlp(32))"


@pytest.mark.parametrize("probe", [slow_case("choice"), "chain"])
def test_noisy_layers_explore_without_an_entropy_bonus(tmp_path, probe):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "nn.py").write_text(NOISY)
    layer = {"base_config": {"env_name": probe, "max_step": 6000}, "acer_config": {"entropy_coef": 0.0}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    assert not load(folder.path).agent.policy.training
    best = [0, 1] if probe == "choice" else [1, 1, 1]
    assert act_greedily(folder, torch.eye(len(best))) == best


def test_the_same_seed_gives_the_same_parameters_bit_for_bit(tmp_path):
    states = []
    for seed in (7, 7, 8):
        layer = read_variant(PROJECT_ENVS / "gym/cartpole/config.yaml", "default")
        short = {"base_config": {"seed": seed, "max_step": 1500, "evaluate_every": 700}}
        _, folder, result = train_quietly(tmp_path, layer, short)
        assert result.counters.updates > 30
        states.append(folder.find_latest().weights("agent"))
    for kind, slices in states[0].items():
        for name, vector in slices.items():
            assert torch.equal(vector, states[1][kind][name])
    assert not torch.equal(states[0]["parameters"]["acer"], states[2]["parameters"]["acer"])


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation_does_not_affect_training(tmp_path, greedy):
    weights = []
    for every in (None, 300):
        layer = read_variant(PROJECT_ENVS / "gym/cartpole/config.yaml", "default")
        short = {"base_config": {"max_step": 1000, "evaluate_every": every, "evaluate_greedy": greedy}}
        _, folder, _ = train_quietly(tmp_path, layer, short)
        weights.append(folder.find_latest().weights("agent")["parameters"]["acer"])
    assert torch.equal(*weights)


# Folders whose default variant has neither an explorer nor a bonus, and does not reach its goal without one; variants
# with a bonus are tested.
UNREACHED = ["exploration/deep_sea", "exploration/noisy_tv", "gym/mountain_car"]
LONGEST = 1_000_000  # env steps of the largest goal that is tested: it takes minutes on one core
QUICK = {"acrobot", "cartpole", "coins", "lights", "recall"}  # whose first seed is not marked slow


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("hybrid/parking", "sac"),
        ("gym/mountain_car", "episodic"),
        ("gym/pendulum", "sac"),
        ("exploration/deep_sea", "ppo_rnd"),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_environment_reaches_its_goal_by_a_variant(tmp_path, task, variant):
    assert_reached(PROJECT_ENVS / task / "config.yaml", variant, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_a_folder_without_a_network_and_settings_of_the_algorithm_learns(tmp_path, seed):
    base = {"env_name": "Acrobot-v1", "algorithm": "ACER", "n_envs": 16}
    limits = {"seed": seed, "max_step": 60_000, "evaluate_every": 60_000}
    _, _, result = train_quietly(tmp_path, {"base_config": base}, {"base_config": limits})
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


def test_folders_of_users_are_not_tested(tmp_path, monkeypatch):
    """The goal of such a folder may have no step budget, as in the folder that the command init writes."""
    folder = tmp_path / "envs" / "mine" / "acrobot"
    shutil.copytree(PROJECT_ENVS, tmp_path / "envs")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("default: {base_config: {env_name: Acrobot-v1}, goal: {return: -100}}")
    monkeypatch.setattr("tests.test_learning.PROJECT_ENVS", tmp_path / "envs")
    configs = {test.values[0] for test in learning_tests()}
    assert tmp_path / "envs" / "gym" / "cartpole" / "config.yaml" in configs
    assert folder / "config.yaml" not in configs


@pytest.mark.parametrize(("config", "seed"), list(learning_tests()))
def test_an_environment_reaches_its_goal(tmp_path, config, seed):
    assert_reached(config, "default", seed)


def assert_reached(config, variant, seed):
    """Train a variant of an environment folder, and check that it reaches its goal within the step budget."""
    goal = resolve([("test", read_variant(config, variant))]).goal
    limit = {"base_config": {"seed": seed, "max_step": goal.step_budget}}
    source = config.parent
    settings = resolve([("test", read_variant(config, variant)), ("limit", limit)])
    folder = RunFolder.create(source.name, source, f"seed{seed}", settings.tree)
    result = train(settings, folder, lambda line: None)
    assert result.goal_reached
    assert result.evaluation["agent"].interval[1] >= goal.return_  # of other episodes than those that confirmed it
    assert result.counters.env_steps <= goal.step_budget
