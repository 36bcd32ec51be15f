"""An environment folder for tests: a given config.yaml, and a small network or another nn.py."""

from pathlib import Path

NN = "from algorithm.networks import Blueprint, Mlp\nblueprint = Blueprint(body=Mlp(8))\n"


def write_task(config: str, name: str = "mine/task", nn: str = NN) -> Path:
    """Write an environment folder below the working directory; return its path."""
    folder = Path("envs", name)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "nn.py").write_text(nn)
    return folder
