"""What an environment of Gymnasium lacks is told as this project's own extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter

try:
    GymAdapter(sys.argv[2], 1, {})
except UnsupportedEnvironment as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "env_name", "extra"),
    [
        ("mujoco", "HalfCheetah-v5", "mujoco"),
        ("imageio", "gymnasium:InvertedPendulum-v5", "mujoco"),
        ("Box2D", "LunarLander-v3", "box2d"),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra(package, env_name, extra):
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, env_name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    start, _, end = process.stdout.strip().partition(" (No module named ")
    assert start == f"the environment {env_name!r} needs the extra {extra}"
    assert end.endswith(f'): pip install -e ".[{extra}]"')
    assert "\n" not in end
