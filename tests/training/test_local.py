"""The order of acting and learning in the local runtime."""

from __future__ import annotations

import numpy as np
import pytest

import algorithm
from algorithm.config.loader import resolve
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.training import actor

ROWS = 4
SETTINGS = {
    "base_config": {"env_type": "PROBE", "env_name": "chain", "n_envs": 3, "max_step": 120, "log_every": 60},
    "acer_config": {"rollout_length": ROWS, "replay_ratio": 0, "learning_rate": 0.1},
    "a2c_config": {"rollout_length": ROWS, "learning_rate": 0.1},
    "ppo_config": {"rollout_length": ROWS, "learning_rate": 0.1, "epochs": 2, "minibatches": 2},
}


@pytest.mark.parametrize(
    ("name", "memory", "first_updated_row"),
    [("A2C", False, 0), ("A2C", True, 0), ("PPO", False, 0), ("PPO", True, 0), ("ACER", False, 1)],
)
def test_the_policy_of_the_last_update_acts(name, memory, first_updated_row, tmp_path, monkeypatch):
    """Agents without a replay decide the first row of a rollout after the update, others before it.

    Then every row of a rollout of an agent without a replay is decided by the policy that learns from it.
    """
    equal_rows = []

    def run_updates(components, rollout, record_update):
        policy, state = components.agent.policy, rollout.memory
        rows = []
        for t in range(ROWS):
            state = np.where(rollout.first[t][:, None], 0, state).astype(np.float32)
            obs = {key: value[t] for key, value in rollout.obs.items()}
            statistics, state = policy.act(obs, state)
            rows.append(bool(np.allclose(statistics, rollout.behavior[t], rtol=1e-5, atol=1e-6)))
        equal_rows.append(rows)
        before = components.learner.parameters.vector.clone()
        learn(components, rollout, record_update)
        assert not components.learner.parameters.vector.equal(before)

    learn = actor.run_updates
    monkeypatch.setattr(actor, "run_updates", run_updates)
    source = tmp_path / "source"
    source.mkdir()
    layers = f"body=Mlp(8){', memory=Gru(4)' if memory else ''}"
    (source / "nn.py").write_text(f"from algorithm.networks import *\nblueprint = Blueprint({layers})\n")
    settings = resolve([("test", SETTINGS), ("test", {"base_config": {"algorithm": name}})])
    folder = RunFolder.create("test", source, "a", settings.tree)
    train(settings, folder, lambda line: None)
    assert len(equal_rows) >= 120 // (3 * ROWS)
    for rows in equal_rows[1:]:
        assert rows == [False] * first_updated_row + [True] * (ROWS - first_updated_row)


def train_sac(name: str, env_args=None, **base) -> bytes:
    """Train SAC on Pendulum-v1, whose environments step in other processes by default; return the final weights."""
    env_args = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}} if env_args is None else env_args
    base = {"max_step": 200, "n_envs": 3, "log_every": 200, "env_args": env_args, **base}
    settings = {"base_config": base, "goal": None, "sac_config": {"learning_starts": 50, "batch_size": 16}}
    result = algorithm.train("gym/pendulum", name=name, variant="sac", settings=settings)
    return max((result.folder / "checkpoints").rglob("weights.pt")).read_bytes()


def test_learning_while_environments_step_changes_no_weight_and_the_seed_determines_environments_that_take_turns():
    overlapping = train_sac("overlapping")
    assert overlapping == train_sac("one after the other", env_args={})
    one, other = (train_sac(name, env_groups=2) for name in ("one", "other"))
    assert one == other != overlapping
