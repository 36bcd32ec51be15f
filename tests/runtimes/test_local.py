"""Training while environments step gives the same numbers as training in turn."""

from __future__ import annotations

from algorithm import train

ASYNC = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}}
SETTINGS = {
    "base_config": {"max_step": 400, "n_envs": 3, "log_every": 200},
    "goal": None,
    "sac_config": {"learning_starts": 50, "batch_size": 16},
}


def train_sac(name: str, **base) -> bytes:
    """Train SAC on Pendulum-v1; return the file of its final weights."""
    settings = {**SETTINGS, "base_config": {**SETTINGS["base_config"], **base}}
    result = train("gym/pendulum", name=name, variant="sac", settings=settings)
    return max((result.folder / "checkpoints").rglob("weights.pt")).read_bytes()


def test_learning_while_environments_step_changes_no_weight():
    assert train_sac("overlapping", env_args=ASYNC) == train_sac("in turn", env_args={})


def test_the_seed_determines_a_run_whose_environments_take_turns():
    one, other = (train_sac(name, env_args=ASYNC, env_groups=2) for name in ("one", "other"))
    assert one == other
    assert one != train_sac("undivided", env_args=ASYNC)
