"""Tests that every kind of action is learned in a real run, played with `--run`, and returned in environment units."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch
import yaml

from algorithm import load
from algorithm.cli import main
from algorithm.config.loader import resolve
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.runs.trained_agent import TrainedAgent
from tests.guessing import Guessing
from tests.task_folder import write_task

# A forbidden action, or one outside the space, raises and ends the run, since no restarts are allowed.
SETTINGS = yaml.safe_load("""
base_config: {max_env_restarts: 0, env_name: "tests.guessing:Guessing-v0", n_envs: 8, max_step: 1000, log_every: 1000}
acer_config:
  {learning_rate: 0.01, gamma: 0.5, reward_scale: 1.0, rollout_length: 4, sequence_length: 4, batch_size: 32,
   learning_starts: 64, replay_ratio: 3, average_policy_decay: 0.9, std_init: 0.3}
sac_config:
  {learning_rate_critic: 0.005, learning_rate_policy: 0.005, learning_rate_alpha: 0.005, gamma: 0.5, rollout_length: 1,
   batch_size: 64, learning_starts: 64, replay_ratio: 2, tau: 0.1, target_d_alpha: 0.1, target_c_alpha: 2.0}
reactor_config:
  {learning_rate: 0.01, gamma: 0.5, reward_normalization: null, n_atoms: 21, v_min: -1.0, v_max: 2.0, rollout_length: 4,
   sequence_length: 4, batch_size: 32, learning_starts: 64, replay_ratio: 3, update_target_per_step: 10}
a2c_config: {learning_rate: 0.01, optimizer: adam, gamma: 0.5, rollout_length: 4, std_init: 0.3}
ppo_config: {learning_rate: 0.01, gamma: 0.5, rollout_length: 16, epochs: 6, minibatches: 4, std_init: 0.3}
""")
# Agents without a replay learn from each env step once, or in a few epochs.
STEPS_WITHOUT_REPLAY = {"A2C": 6000, "PPO": 2500}
SPACES = {
    "Discrete": ("discrete", None, {}),
    "Box": ("box", None, {}),
    "MultiDiscrete": ("multi-discrete", None, {}),
    "MultiBinary": ("multi-binary", None, {}),
    "Dict": ("dict", None, {}),
    "Tuple": ("tuple", None, {}),
    "Discrete masked by info": ("discrete", "info", {}),
    "MultiDiscrete masked by observation": ("multi-discrete", "obs", {}),
}
STDS = {
    "state std": ("box", None, {"std": "state_dependent", "std_min": 0.1}),
    "squashed": ("box", None, {"tanh_squash": True}),
}
ACER = {
    **SPACES,
    **STDS,
    "learned std": ("box", None, {"std": "learned", "std_min": 0.1}),
    "vtrace with q": ("box", None, {"estimator": "vtrace"}),
    "vtrace with v": ("box", None, {"estimator": "vtrace", "critic": "state_value"}),
    "n_step with v": ("box", None, {"estimator": "n_step", "critic": "state_value"}),
}
LIKE_DQN = {"discrete_dqn_like": True, "discrete_dqn_epsilon": 0.2}
SAC = {
    **SPACES,
    "like DQN": ("discrete", None, LIKE_DQN),
    "like DQN, MultiDiscrete masked by observation": ("multi-discrete", "obs", LIKE_DQN),
    "several steps": ("dict", None, {"n_step": 2, "sequence_length": 2, "estimator": "retrace"}),
}
REACTOR = {
    **{name: kind for name, kind in SPACES.items() if kind[0] not in ("box", "dict", "tuple")},
    "scalar critic": ("discrete", None, {"critic": "scalar"}),
    "truncated importance": ("multi-discrete", "obs", {"policy_gradient": "truncated_importance"}),
    "truncated beta": ("discrete", "info", {"loo_beta": "truncated"}),
}
CASES = {"ACER": ACER, "SAC": SAC, "REACTOR": REACTOR, "A2C": {**SPACES, **STDS}, "PPO": {**SPACES, **STDS}}
# The other action spaces are tested with these algorithms only among the slow tests.
FAST = {
    "ACER": {"Discrete masked by info", "Box", "MultiDiscrete masked by observation", "Dict"},
    "SAC": {"Dict", "like DQN, MultiDiscrete masked by observation"},
    "REACTOR": {"Discrete", "MultiDiscrete masked by observation"},
    "A2C": {"Box"},
    "PPO": {"Discrete masked by info", "Tuple"},
}


def make_case(is_fast, *values, name=None):
    """Return a test parameter, which is marked slow unless `is_fast`."""
    return pytest.param(*values, marks=[] if is_fast else pytest.mark.slow, id=name)


KINDS = [
    make_case(name in FAST[algorithm], algorithm, *kind, name=f"{algorithm}-{name}")
    for algorithm, kinds in CASES.items()
    for name, kind in kinds.items()
]
NN = "from algorithm.networks import Blueprint, Mlp\nblueprint = Blueprint(body=Mlp(32))\n"
CONSTANT_RETURN = 2 / 3  # of the best action that ignores the situation, for every action space


def layer(algorithm: str, changes: dict, **base) -> dict:
    """Return settings that select an algorithm and change its section and the base section."""
    if algorithm in STEPS_WITHOUT_REPLAY:
        base = {"max_step": STEPS_WITHOUT_REPLAY[algorithm], **base}
    return {"base_config": {"algorithm": algorithm, **base}, f"{algorithm.lower()}_config": changes}


def train_folder(changes: dict, nn: str = NN) -> RunFolder:
    """Train an environment folder with changed settings. Return the run folder."""
    settings = resolve([("test", SETTINGS), ("test", changes)])
    folder = RunFolder.create("mine/guessing", write_task("default:\n", "mine/guessing", nn), "a", settings.tree)
    train(settings, folder, lambda line: None)
    return folder


def mean_return(player: TrainedAgent, env: Guessing, episodes: int = 30) -> float:
    """Return the mean return over episodes whose seeds differ from the seeds of training."""
    total = 0.0
    for episode in range(episodes):
        obs, info = env.reset(seed=10_000 + episode)
        player.reset()
        over = False
        while not over:
            action = player.act(obs, info.get("action_mask"))
            assert env.action_space.contains(action)
            obs, reward, over, _, info = env.step(action)
            total += reward
    return total / episodes


@pytest.mark.parametrize(("algorithm", "kind", "masks", "changes"), KINDS)
def test_every_kind_of_action_is_learned_and_played(algorithm, kind, masks, changes, capsys):
    folder = train_folder(layer(algorithm, changes, env_args={"kind": kind, "masks": masks}))
    settings = folder.load_settings()
    env, role = Guessing(kind, masks), folder.read_roles()["agent"]
    untrained = ComponentsBuilder(settings, folder, None, print)("agent", role).agent
    before = mean_return(TrainedAgent(untrained, role, disable_sample=True), env)
    after = mean_return(load(folder.path, disable_sample=True), env)
    assert after > min(before + 0.2, 0.95)  # an untrained agent may be good by chance
    assert after > CONSTANT_RETURN + 0.15
    assert (
        mean_return(load(folder.path, disable_sample=False), env) > CONSTANT_RETURN - 0.1
    )  # sampled actions are in the space, too, and almost as good

    capsys.readouterr()
    assert main.main(["mine/guessing", "-n", "a", "--run", "--disable_sample"]) == 0
    printed = re.search(r"return ([\d.]+) ", capsys.readouterr().out)
    assert printed and float(printed[1]) == pytest.approx(after, abs=0.12)


MEMORIES = {
    "gru": "memory=Gru(16)",
    "lstm": "memory=Lstm(16)",
    "attention": "memory=Attention(16, heads=2, window=3)",
    "frame stack": 'encoders={"*": FrameStack(2, Vector())}',
    "gru of policy and critic": "policy=Gru(16), critic=Gru(16)",  # only with Reactor
}
MEMORY_SETTINGS = {
    "ACER": {"rollout_length": 6, "sequence_length": 6, "learning_rate": 0.004},
    "SAC": {"rollout_length": 6, "sequence_length": 6, "batch_size": 32, "replay_ratio": 6},
    "REACTOR": {"rollout_length": 6, "sequence_length": 6},
    "A2C": {"rollout_length": 6},
    "PPO": {"rollout_length": 15, "minibatches": 2},
}
MEMORY_STEPS = {"ACER": 2500, "SAC": 2500, "REACTOR": 2500, "A2C": 12_000, "PPO": 6000}
ATTENTION_STEPS = {"ACER": 5000, "SAC": 8000, "REACTOR": 5000}  # others need several times as many
FAST_MEMORIES = {
    ("ACER", "gru", "dict"),
    ("ACER", "attention", "discrete"),
    ("SAC", "frame stack", "box"),
    ("REACTOR", "gru of policy and critic", "discrete"),
    ("PPO", "frame stack", "discrete"),
}
MEMORY_CASES = [
    make_case((algorithm, memory, kind) in FAST_MEMORIES, algorithm, memory, kind)
    for algorithm, memory, kind in product(MEMORY_SETTINGS, MEMORIES, ("discrete", "box", "dict", "multi-discrete"))
    if (kind in ("discrete", "multi-discrete") if algorithm == "REACTOR" else kind != "multi-discrete")
    if algorithm in ATTENTION_STEPS or memory != "attention"
    if algorithm == "REACTOR" or memory != "gru of policy and critic"
]


@pytest.mark.parametrize(("algorithm", "memory", "kind"), MEMORY_CASES)
def test_every_memory_learns_with_every_kind_of_action(algorithm, memory, kind):
    """The best action depends on the previous observation, so an agent without a memory reaches a constant return."""
    steps = ATTENTION_STEPS if memory == "attention" else MEMORY_STEPS
    base = {"max_step": steps[algorithm], "env_args": {"kind": kind, "late": True}}
    nn = f"from algorithm.networks import *\nblueprint = Blueprint(body=Mlp(32), {MEMORIES[memory]})\n"
    folder = train_folder(layer(algorithm, MEMORY_SETTINGS[algorithm], **base), nn)
    assert mean_return(load(folder.path, disable_sample=True), Guessing(kind, late=True)) > CONSTANT_RETURN + 0.15


ONE_STATE = {"env_name": "tests.guessing:ConstantReward-v0", "max_step_each_iter": 10, "env_args": {}}


@pytest.mark.parametrize(
    ("algorithm", "max_step", "changes"),
    [
        ("ACER", 1000, {}),
        make_case(False, "ACER", 1000, {"std": "learned", "std_min": 0.1}),
        ("ACER", 1000, {"estimator": "vtrace", "critic": "state_value"}),
        make_case(False, "SAC", 2400, {"alpha_critic_scale": 0.0, "learning_rate_schedule": "linear"}),
    ],
    ids=str,
)
def test_a_time_limit_is_not_a_termination_with_continuous_actions(algorithm, max_step, changes):
    """One state, reward 1, truncated after 10 steps: its value is 10; as a termination it would be about 4.4.

    The targets of SAC have no entropy.
    """
    changes = layer(algorithm, {"gamma": 0.9, **changes}, **ONE_STATE, max_step=max_step)
    agent, obs = load(train_folder(changes).path).agent, {"obs": torch.ones(1, 1)}
    with torch.no_grad():
        if algorithm == "SAC":
            values = agent.critics(agent.critics.torso.encode(obs), torch.zeros(1, 1, 2)).flatten()
        else:
            values = agent.policy.compute_outputs(agent.policy.torso.encode(obs))[0, [agent.family.statistics_size]]
    assert values.tolist() == pytest.approx([10] * len(values), abs=0.5)
