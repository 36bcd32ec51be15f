"""A resumed run is equal to an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.checkpointing.checkpoint import Checkpoint, write_all
from algorithm.checkpointing.store import CheckpointStore, CheckpointWriter
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge, read_variant
from algorithm.networks.precision import CPU, Placement
from algorithm.parts import components_builder
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder, find_environment_folder
from algorithm.runs.build import train
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.metrics import read_table
from algorithm.training.progress import History
from tests.demonstrated import record_run
from tests.doubles import collect_ticks

pytestmark = pytest.mark.usefixtures("registered_fakes")

NN = """
from torch import nn
from algorithm.networks import (
    Attention, Blueprint, Conv, FrameStack, Gru, Lstm, Mlp, NoisyMlp, RandomShift, Residual, Vector
)
from tests.fakes import RunningSum
blueprint = Blueprint(encoders={{"*": {encoder}}}, body={body}{memory})
"""
REPLAYED = {"rollout_length": 8, "sequence_length": 12, "batch_size": 4, "learning_starts": 32, "replay_ratio": 1.5}
SETTINGS = {
    "base_config": {"n_envs": 3, "max_step": 230, "log_every": 40, "save_every": 37, "keep_checkpoints": 9},
    "replay_config": {"capacity": 150},  # full before the end of the run
    "acer_config": REPLAYED,
    "sac_config": REPLAYED,
    "reactor_config": {**REPLAYED, "n_atoms": 11, "update_target_per_step": 7},
    "a2c_config": {"rollout_length": 8},
    "ppo_config": {"rollout_length": 8, "epochs": 3, "minibatches": 2},
    "poca_config": {"rollout_length": 8, "epochs": 3, "minibatches": 2, "team_size": 3, "team_units": 8},
}
CONTINUOUS, HYBRID = {"continuous": 2}, {"continuous": 1, "branches": [3]}
SHORT = {"rollout_length": 4, "sequence_length": 6, "burn_in_step": 2}
THREE_CRITICS = {"ensemble_q_num": 3, "ensemble_q_sample": 2}
# By their paths, so that workers find the fakes, too.
ENV_TYPES = {"any": "AnyAction", "growing": "Growing", "pair": "Pair", "roles": "TwoRoles", "skipping": "Skipping"}


def base(env_name, **settings):
    """Return the section base_config of a run in a fake environment, or in a probe."""
    env_type = f"tests.fakes:{ENV_TYPES[env_name]}" if env_name in ENV_TYPES else "PROBE"
    return {"env_type": env_type, "env_name": env_name, **settings}


# Further settings of each run.
RUNS = {
    "probe": {"base_config": base("chain")},
    "goal and evaluation": {
        "base_config": base("choice", evaluate_every=50, evaluate_greedy=False),
        "acer_config": {"reward_normalization": "return_std", "optimizer": "rmsprop"},
        "goal": {"return": 0.85},  # reached by chance in training, and not in every evaluation
    },
    "recurrent and skipping": {"base_config": base("skipping"), "memory": "RunningSum"},
    "gru, last action and episodic bonus": {
        "base_config": base("chain", observe_previous=["action", "reward"]),
        "acer_config": {"burn_in_step": 3},
        "auxiliaries": {"episodic": {"strength": 0.1}},
        "memory": "Gru(6)",
    },
    "attention, skipping": {
        "base_config": base("skipping", observe_previous=["action"]),
        "memory": "Attention(8, heads=2, window=5)",
    },
    # A critic that samples actions draws from torch's global generator.
    "continuous, noisy and normalised": {
        "base_config": base("any", env_args=CONTINUOUS),
        "acer_config": {"std": "learned"},
        "explorer": {"action_noise": [0.0, 0.4]},
        "encoder": "Vector(normalize=True)",
    },
    "prioritized, with repeated actions": {
        "base_config": base("chain"),
        "replay_config": {"capacity": 150, "sampler": "prioritized", "beta_increment_per_sampling": 0.02},
        "explorer": {"action_repeat": [0.3, 0.9]},
    },
    "noisy layers": {"base_config": base("chain", evaluate_every=50, evaluate_greedy=False), "body": "NoisyMlp(8)"},
    "batch statistics and unit weights, sac": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID, evaluate_every=50),
        "sac_config": {"n_step": 1},
        "body": "Residual(6, 1, norm='batch_renorm', unit_weights=True)",
        "memory": "None, critic=Residual(6, 1), policy=Mlp(5, norm='batch')",
    },
    "batch statistics, frame stack, gru and curiosity": {
        "base_config": base("chain", evaluate_every=50),
        "acer_config": {"burn_in_step": 3},
        "auxiliaries": {"curiosity": {"units": 8}},
        "encoder": "FrameStack(3, Vector(normalize=True))",
        "body": "Residual(6, 1)",
        "memory": "Gru(6)",
    },
    "full trust region, hybrid and recurrent": {
        "base_config": base("any", env_args=HYBRID, evaluate_every=50),
        "acer_config": {"trust_region": "full", "std": "learned", "burn_in_step": 3, "replay_ratio": 0.5},
        "memory": "Gru(6)",
    },
    "sac, hybrid and recurrent": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID, evaluate_every=50, evaluate_greedy=False),
        "sac_config": {"n_step": 3, "burn_in_step": 3, "update_target_per_step": 3, **THREE_CRITICS},
        "memory": "Gru(6)",
    },
    "sac, shifted images, recurrent and rnd": {
        "base_config": base("any", algorithm="SAC", env_args={"branches": [3], "shape": [2, 5, 4]}, evaluate_every=50),
        "sac_config": {"burn_in_step": 3},
        "auxiliaries": {"rnd": {"units": 8, "warmup_steps": 50}},
        "encoder": "FrameStack(2, Conv((3, 2, 1), units=8))",
        "memory": "Gru(6), augmentations={'*': RandomShift(1)}",
    },
    "sac, categorical and residual, with resets": {
        "base_config": base("any", algorithm="SAC", env_args=CONTINUOUS),
        "sac_config": {
            "critic": "categorical",
            "n_atoms": 11,
            "reward_normalization": "return_max",
            "policy_update_every": 2,
            "learning_rate_schedule": "cosine",
            "learning_rate_final_fraction": 0.5,
            "optimizer": "adamw",
            "weight_decay": 0.1,
            "target_entropy_std": 0.15,
            "reset_every": 7,
            "reset_shrink": 0.5,
            "random_steps": 80,
        },
        "memory": "None, policy=Residual(4, unit_weights=True), critic=Residual(5, unit_weights=True)",
    },
    "sac without target critics, hybrid": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID, evaluate_every=50),
        "sac_config": {"target": "none", "policy_update_every": 3, "optimizer_beta1": 0.5, "reset_every": 11},
        "body": "Mlp(8, norm='batch_renorm')",
        "memory": "None, policy=Mlp(6, norm='batch_renorm'), critic=Mlp(7, norm='batch_renorm')",
    },
    "reactor, lazy, memories of policy and critic, skipping": {
        "base_config": base("skipping", algorithm="REACTOR", evaluate_every=50),
        "replay_config": {"capacity": 300, "sampler": "lazy"},
        "reactor_config": {**SHORT, "reward_normalization": "return_std"},
        "encoder": "FrameStack(3, Vector(normalize=True))",
        "memory": "Gru(5), policy=Lstm(4), critic=Gru(6)",
    },
    "a2c, hybrid and recurrent": {
        "base_config": base("any", algorithm="A2C", env_args=HYBRID, evaluate_every=50),
        "a2c_config": {"optimizer": "adam", "learning_rate_schedule": "linear", "reward_normalization": "return_std"},
        "encoder": "Vector(normalize=True)",
        "memory": "Gru(6)",
    },
    "ppo": {
        "base_config": base("any", algorithm="PPO", env_args=CONTINUOUS, evaluate_every=50, evaluate_greedy=False),
        "ppo_config": {"clip_ratio_schedule": "linear", "target_kl": 0.002, "value_clip": 0.2},
        "explorer": {"action_noise": [0.0, 0.4]},
        "encoder": "Vector(normalize=True)",
    },
    "ppo, recurrent and skipping": {
        "base_config": base("skipping", algorithm="PPO"),
        "auxiliaries": {"episodic": {"memory": "embeddings", "units": 8, "embedding_size": 4, "neighbors": 3}},
        "encoder": "FrameStack(3, Vector(normalize=True))",
        "memory": "Lstm(6)",
    },
    "self-play, recurrent": {
        "base_config": base("pair", evaluate_every=50),
        "opponent_config": {"opponents": ["past", "random"], "save_steps": 30, "swap_steps": 20, "window": 3},
        "acer_config": {"burn_in_step": 3},
        "memory": "Gru(6)",
    },
    "self-play by turns of steps, ppo": {
        "base_config": base("pair", algorithm="PPO", evaluate_every=50),
        "opponent_config": {"opponents": ["past"], "save_steps": 20, "team_change": 60, "evaluation_opponent": "past"},
        "ma_config": {"right": {"agent": "left"}},
    },
    "poca, recurrent": {
        "base_config": base("pair", algorithm="POCA", evaluate_every=50, observe_previous=["action"]),
        "ma_config": {"right": {"agent": "left"}},
        "encoder": "Vector(normalize=True)",
        "memory": "Gru(6)",
    },
    "agents that are added, ppo": {
        "base_config": base("growing", algorithm="PPO"),
        "ppo_config": {"reward_normalization": "return_std"},
        "memory": "Gru(6)",
    },
    "agents that are added": {
        "base_config": base("growing", observe_previous=["action"]),
        "acer_config": {"reward_normalization": "return_std"},
        "explorer": {"action_noise": [0.0, 0.4]},
    },
    "agents that are added, lazy and recurrent, episodic bonus by features": {
        "base_config": base("growing", evaluate_every=50),
        "replay_config": {"capacity": 150, "sampler": "lazy"},
        "acer_config": SHORT,
        "auxiliaries": {"episodic": {"memory": "embeddings", "features": "agent", "neighbors": 3}},
        "memory": "Gru(6)",
    },
    "prediction and atc, frame stack and gru, skipping": {
        "base_config": base("skipping"),
        "acer_config": {"burn_in_step": 3},
        "auxiliaries": {
            "prediction": {"units": 8},
            "atc": {"steps": 2, "noise": 0.1, "max_pairs": 20, "adaptive": True},
        },
        "encoder": "FrameStack(3, Vector(normalize=True))",
        "memory": "Gru(6)",
    },
    "rnd of actions, novel actions, sac": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID),
        "sac_config": {"n_step": 1},
        "auxiliaries": {"rnd": {"units": 8, "warmup_steps": 50, "input": "observation_and_action"}},
        "explorer": {"novel_action": {"n_samples": 3}},
    },
    "curiosity about features of the agent and repeated noise, sac, hybrid": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID),
        "auxiliaries": {"curiosity": {"units": 8, "features": "agent"}},
        "explorer": {"noise_repeat": 16},
    },
    "byol, sac": {
        "base_config": base("any", algorithm="SAC", env_args={"branches": [3]}),
        "auxiliaries": {"byol": {"noise": 0.1, "symmetric": True, "action_values": True}},
    },
    "demonstrations, gru, acer": {
        "base_config": base("chain", evaluate_every=50),
        "acer_config": {"burn_in_step": 3, "critic": "state_value", "estimator": "vtrace"},
        "demonstration_config": {"sources": ["player.npz"], "batch_share": 0.5},
        "auxiliaries": {
            "behavior_cloning": {"pretraining_updates": 20, "batch_size": 4, "end": 0.5, "strength": 0.1},
            "gail": {"units": 8, "policy_rows": 60, "batch_size": 8},
        },
        "encoder": "FrameStack(2, Vector(normalize=True))",
        "memory": "Gru(6)",
    },
    "demonstrations, sac, hybrid": {
        "base_config": base("any", algorithm="SAC", env_args=HYBRID),
        "sac_config": {"n_step": 3, "policy_update_every": 2},
        "demonstration_config": {"sources": ["player.npz"], "batch_share": None},
        "auxiliaries": {"behavior_cloning": {"batch_size": 4}},
    },
    "several roles, one of them late": {
        "base_config": base("roles", algorithm="TWO_GROUPS"),
        "auxiliaries": {"distillation": {"weight": 0.5}},
        "explorer": {"mixture": {"epsilon": 0.3}},
        "memory": "RunningSum",
    },
}


def new_run(tmp_path, name: str, kind: str, **base) -> RunFolder:
    own = dict(RUNS[kind])
    source = tmp_path / "envs" / "fake" / "task"
    source.mkdir(parents=True, exist_ok=True)
    memory = f", memory={own.pop('memory')}" if "memory" in own else ""
    body, encoder = own.pop("body", "Mlp(8)"), own.pop("encoder", "Vector()")
    (source / "nn.py").write_text(NN.format(encoder=encoder, body=body, memory=memory))
    tree = resolve([("test", SETTINGS), ("test", own), ("test", {"base_config": base})]).tree
    if "demonstration_config" in own and not Path("player.npz").exists():
        alone = {**tree, "demonstration_config": {"sources": [], "batch_share": 0.0}, "auxiliaries": {}}
        folder = RunFolder.create("fake/task", source, "player", alone)
        record_run(folder, Path("player.npz"))
        folder.remove()
    return RunFolder.create("fake/task", source, name, tree)


def train_run(folder: RunFolder) -> Checkpoint:
    train(folder.load_settings(), folder, lambda line: None)
    return folder.find_latest()


def copy_shortened(folder: RunFolder, name: str, checkpoints: int) -> RunFolder:
    """Return a copy of a run that has only its first checkpoints, as if it had been killed after them."""
    copy = RunFolder(folder.path.with_name(name))
    shutil.copytree(folder.path, copy.path)
    for later in sorted((copy.path / "checkpoints").glob("0*"))[checkpoints:]:
        shutil.rmtree(later)
    return copy


def content(checkpoint: Checkpoint) -> dict:
    """Return every value in a checkpoint but the seconds."""
    about = json.loads((checkpoint.folder / "counters.json").read_text())
    for name in ("seconds", "cpu_seconds"):
        about["counters"].pop(name, None)
    found = {"about": about}
    for path in sorted(checkpoint.folder.rglob("*.npz")):
        with np.load(path) as arrays:
            found |= {f"{path.relative_to(checkpoint.folder)}/{name}": arrays[name].copy() for name in arrays}
    for path in sorted(checkpoint.folder.rglob("*.pt")):
        found |= flat(str(path.relative_to(checkpoint.folder)), torch.load(path, weights_only=True))
    return found


def flat(prefix: str, tree) -> dict:
    if isinstance(tree, dict):
        return {key: leaf for name, branch in tree.items() for key, leaf in flat(f"{prefix}/{name}", branch).items()}
    return {prefix: tree.numpy()}


def assert_equal(one: Checkpoint, other: Checkpoint) -> None:
    left, right = content(one), content(other)
    assert left.keys() == right.keys()
    assert left.pop("about") == right.pop("about")
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], name)
        assert value.dtype == right[name].dtype


def compare_rows(folder: RunFolder) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of the metrics, and what is equal in the rows of equal runs."""
    table, kept = read_table(folder.path / "metrics.csv"), ("env_steps", "rollout/", "eval/")
    return table.columns, [{name: row[name] for name in row if name.startswith(kept)} for row in table.rows]


def open_components(folder: RunFolder, checkpoint: Checkpoint | None = None) -> TrainingComponents:
    """Return the components of a run in this process, before its roles are built."""
    settings = folder.load_settings()
    adapter = Environments(settings, folder).open(settings.base.n_envs)
    return TrainingComponents(adapter, ComponentsBuilder(settings, folder, checkpoint, lambda line: None))


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_ends_as_uninterrupted_ones(kind, seed, tmp_path):
    straight = new_run(tmp_path, "straight", kind, seed=seed)
    end = train_run(straight)
    saved = sorted((straight.path / "checkpoints").glob("0*"))
    assert len(saved) >= 3
    assert any(int(path.name) % (3 * 8) for path in saved[:-1])  # in the middle of a rollout
    resumed = copy_shortened(straight, "from the end", len(saved) - 2)
    assert_equal(train_run(resumed), end)
    assert compare_rows(resumed) == compare_rows(straight)
    resumed = copy_shortened(straight, "saved only at its end", 1)
    resumed.record_settings(merge(resumed.load_settings().tree, {"base_config": {"save_every": None}}), 0)
    assert_equal(train_run(resumed), end)
    assert compare_rows(resumed) == compare_rows(straight)


@pytest.mark.parametrize(
    "kind",
    [
        "continuous, noisy and normalised",
        "noisy layers",
        "recurrent and skipping",
        "sac, hybrid and recurrent",
        "reactor, lazy, memories of policy and critic, skipping",
        "several roles, one of them late",
        "batch statistics and unit weights, sac",
    ],
)
def test_acting_on_a_copy_changes_nothing_also_after_a_resume(kind, tmp_path, monkeypatch):
    plain = train_run(new_run(tmp_path, "plain", kind))
    placement = Placement(learning=torch.device("cpu:0"), acting=CPU)  # the same device for torch
    monkeypatch.setattr(components_builder, "choose_placement", lambda base, agent, role: placement)
    copied = new_run(tmp_path, "copied", kind)
    assert_equal(train_run(copied), plain)
    assert_equal(train_run(copy_shortened(copied, "resumed", 2)), plain)


def test_a_run_that_is_extended_is_equal_to_a_longer_one(tmp_path):
    straight = train_run(new_run(tmp_path, "straight", "probe"))
    halves = new_run(tmp_path, "halves", "probe", max_step=115)
    train_run(halves)
    halves.record_settings(merge(halves.load_settings().tree, {"base_config": {"max_step": 230}}), 115)
    assert_equal(train_run(halves), straight)


def new_cartpole(base, **changes) -> RunFolder:
    """Return a new run of the folder gym/cartpole."""
    source = find_environment_folder("gym/cartpole")
    layers = [read_variant(source / "config.yaml", "default"), {"base_config": base, **changes}]
    return RunFolder.create("gym/cartpole", source, "a", resolve([("test", layer) for layer in layers]).tree)


def test_everything_but_episodes_is_restored_with_gymnasium(tmp_path):
    folder = new_cartpole({"max_step": 1300, "log_every": 400}, acer_config={"reward_normalization": "return_std"})
    saved = train_run(folder)
    assert not (saved.folder / "actor.npz").exists()

    parts, counters = open_components(folder, saved), saved.counters
    for role in saved.roles:
        parts.by_role[role] = parts.build(role, folder.read_roles()[role])
    actor, history = Actor(parts, seed=77), History(parts, counters)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    states = {"history": history, "curriculum": EnvironmentParameters({})}
    saved.restore_states(states)
    saved.restore_process(actor)
    assert history.recent["agent"].is_full
    learner, collected = parts.get("agent").learner, int(saved.learner_state("agent")["seen"])
    assert collected < learner.rows_seen == counters.env_steps  # the rows of incomplete rollouts count for schedules
    learner._counts[1] = collected
    writer = CheckpointWriter(CheckpointStore(tmp_path / "again", 1), partial(write_all, parts, actor), states, print)
    assert_equal(writer.write(counters), saved)
    _, rollout = collect_ticks(actor, 100)[0]
    assert not rollout.continues_previous.any() and rollout.first[0].all()
    parts.adapter.close()


def test_new_episodes_start_with_the_next_seeds():
    folder = new_cartpole({"max_step": 100, "n_envs": 2})
    train_run(folder)
    folder.record_settings(merge(folder.load_settings().tree, {"base_config": {"max_step": 300}}), 100)
    train_run(folder)
    with np.load(folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        starts = arrays["obs/obs"][arrays["first"]]
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_an_actor_that_was_interrupted_in_a_tick_has_no_state(tmp_path):
    parts = open_components(new_run(tmp_path, "a", "probe"))
    actor = Actor(parts, seed=0)
    collect_ticks(actor, 1)
    assert actor.state() is not None

    parts.adapter.receive = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        collect_ticks(actor, 1)
    assert actor.state() is None
