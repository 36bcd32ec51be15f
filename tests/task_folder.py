"""An environment folder for tests: `TRUNCATION` or another config.yaml, and a small network or another nn.py."""

from pathlib import Path

TRUNCATION = """
default:
  base_config: {env_type: PROBE, suggest_settings: false, algorithm: ACER, env_name: truncation,
    max_step: 90, log_every: 30, save_every: 30, n_envs: 3}
  acer_config: {rollout_length: 5, sequence_length: 5}
goal:
  goal: {return: 10}
"""
NN = "from algorithm.networks import Blueprint, Mlp\nblueprint = Blueprint(body=Mlp(8))\n"


def write_task(config: str, name: str = "mine/task", nn: str = NN) -> Path:
    """Write an environment folder below the working directory; return its path."""
    folder = Path("envs", name)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "nn.py").write_text(nn)
    return folder
