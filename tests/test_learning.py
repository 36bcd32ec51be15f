"""Agents learn what is known, and what an environment's folder asks for."""

import numpy as np
import pytest
import torch

from algorithm.experiment.assembly import TeamBuilder, train
from algorithm.experiment.player import load
from algorithm.experiment.run_folder import BESIDE_MAIN, RunFolder
from algorithm.experiment.settings import read_variant, resolve
from tests.builders import PAIRS

PROBE = {
    "base_config": {"env_type": "PROBE", "n_envs": 4, "log_every": 1000},
    "acer_config": {"gamma": 0.9, "learning_rate": 0.003, "replay_start": 100},
}


def train_quietly(tmp_path, *layers):
    settings = resolve([("test", layer) for layer in layers])
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    name = f"run{len(list((tmp_path / 'runs').rglob('config.yaml'))) if (tmp_path / 'runs').exists() else 0}"
    folder = RunFolder.create("test", source, name, settings.tree)
    return settings, folder, train(settings, folder, lambda line: None)


def values(settings, folder):
    """What the critic makes of every state of a probe, and the policy's probabilities, as trained."""
    builder = TeamBuilder(settings, folder, folder.latest(), print)
    role = folder.roles()["agent"]
    agent = builder("agent", role).agent
    states = torch.eye(role.obs_specs["obs"].shape[0])
    with torch.no_grad():
        logits, q = agent.policy.heads(agent.policy.torso.encode({"obs": states}))
    return q.numpy(), logits.softmax(-1).numpy()


def learned_values(tmp_path, env_name, max_step, estimator, critic):
    """What a critic makes of the states of a probe after so many steps."""
    probe = {
        "base_config": {"env_name": env_name, "max_step": max_step},
        # A constant rate would leave values that still move with every batch.
        "acer_config": {
            "estimator": estimator,
            "critic": critic,
            "learning_rate": 0.01,
            "learning_rate_schedule": "linear",
        },
    }
    settings, folder, _ = train_quietly(tmp_path, PROBE, probe)
    return values(settings, folder)[0]


@pytest.mark.parametrize(("estimator", "critic"), PAIRS)
def test_a_time_limit_is_no_death(tmp_path, estimator, critic):
    learned = learned_values(tmp_path, "truncation", 6000, estimator, critic)
    np.testing.assert_allclose(learned, 10, atol=0.5)  # taking the limit for a death gives 4.4


@pytest.mark.parametrize(("estimator", "critic"), PAIRS)
def test_the_next_episode_does_not_leak(tmp_path, estimator, critic):
    learned = learned_values(tmp_path, "leak", 12000, estimator, critic)
    np.testing.assert_allclose(learned[0], -41, atol=2)  # a leak gives about -68
    np.testing.assert_allclose(learned[1], 10, atol=1)  # and -32


@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("probe", ["choice", "chain"])
def test_simple_decisions_are_learned(tmp_path, probe, space):
    layer = {"base_config": {"env_name": probe, "max_step": 6000}, "acer_config": {"trust_region_space": space}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    _, policy = values(settings, folder)
    best = np.arange(2) if probe == "choice" else np.ones(3, int)
    assert (policy.argmax(-1) == best).all()


def test_a_simple_decision_is_learned_in_bfloat16(tmp_path):
    layer = {"base_config": {"env_name": "choice", "max_step": 6000, "precision": "bfloat16"}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    assert (values(settings, folder)[1].argmax(-1) == np.arange(2)).all()


NOISY = "from algorithm.networks import Blueprint, NoisyMlp\nblueprint = Blueprint(body=NoisyMlp(32))"


@pytest.mark.parametrize("probe", ["choice", "chain"])
def test_noisy_layers_explore_without_an_entropy_bonus(tmp_path, probe):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "nn.py").write_text(NOISY)
    layer = {"base_config": {"env_name": probe, "max_step": 6000}, "acer_config": {"entropy": 0.0}}
    settings, folder, result = train_quietly(tmp_path, PROBE, layer)
    assert result.returns["agent"] >= 0.85
    player = load(folder.path, disable_sample=True)
    assert not player.agent.policy.training
    best = [0, 1] if probe == "choice" else [1, 1, 1]
    assert player.act(np.eye(len(best), dtype=np.float32)).tolist() == best


def test_the_same_seed_gives_the_same_parameters_bit_for_bit(tmp_path):
    states = []
    for seed in (7, 7, 8):
        layer = read_variant(BESIDE_MAIN / "gym/cartpole/config.yaml", "default")
        short = {"base_config": {"seed": seed, "max_step": 1500, "evaluate_every": 700}}
        _, folder, result = train_quietly(tmp_path, layer, short)
        assert result.counters.updates > 30
        states.append(folder.latest().weights("agent"))
    for kind, slices in states[0].items():
        for name, vector in slices.items():
            assert torch.equal(vector, states[1][kind][name])
    assert not torch.equal(states[0]["parameters"]["acer"], states[2]["parameters"]["acer"])


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation_does_not_touch_training(tmp_path, greedy):
    weights = []
    for every in (None, 300):
        layer = read_variant(BESIDE_MAIN / "gym/cartpole/config.yaml", "default")
        short = {"base_config": {"max_step": 1000, "evaluate_every": every, "evaluate_greedy": greedy}}
        _, folder, _ = train_quietly(tmp_path, layer, short)
        weights.append(folder.latest().weights("agent")["parameters"]["acer"])
    assert torch.equal(*weights)


LONGEST = 1_000_000  # env steps of a goal that a processor reaches in minutes; Atari's take hours
QUICK = 50000  # env steps within which a goal must be reached for its first seed to be tried on every push


def learning_tests():
    """Every environment's folder that has a goal within `LONGEST`, with three seeds."""
    for config in sorted(BESIDE_MAIN.rglob("config.yaml")):
        goal = resolve([("test", read_variant(config, "default"))]).goal
        near = goal and goal.return_ is not None and goal.within <= LONGEST
        for seed in range(3 if near else 0):
            slow = [pytest.mark.slow, pytest.mark.timeout(600)] if seed or goal.within > QUICK else []
            yield pytest.param(config, goal, seed, marks=slow, id=f"{config.parent.name}-{seed}")


@pytest.mark.parametrize(("config", "goal", "seed"), list(learning_tests()))
def test_an_environment_reaches_its_goal(tmp_path, config, goal, seed):
    limit = {"base_config": {"seed": seed, "max_step": goal.within}}
    source = config.parent
    settings = resolve([("test", read_variant(config, "default")), ("limit", limit)])
    folder = RunFolder.create(source.name, source, f"seed{seed}", settings.tree)
    result = train(settings, folder, lambda line: None)
    assert result.reached
    assert result.evaluation["agent"].mean >= goal.return_
    assert result.counters.env_steps <= goal.within
