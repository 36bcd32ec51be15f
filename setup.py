"""Packaging; tool settings live in pyproject.toml."""

import re
import shutil
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# At the top of the repository; in algorithm/_data of an installed package.
DATA = ("default_config.yaml", "envs", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))))

RENDER = ["gymnasium[classic-control]>=1.1,<2"]
BOX2D = ["gymnasium[box2d]>=1.1,<2"]
MUJOCO = ["gymnasium[mujoco]>=1.1,<2", "mujoco>=3,<5"]
ATARI = ["ale-py>=0.12", "opencv-python-headless>=4.10"]
MINATAR = ["minatar>=1.0.15"]
MINIGRID = ["minigrid>=2.5"]
# dm_control 1.0.50 does not start with mujoco 4, which has no flex_vertedge; dm_control accepts it all the same.
DM_CONTROL = ["shimmy[dm-control]>=2", "mujoco>=3,<4"]
PYBULLET = ["pybullet>=3.2.7", "pybullet_envs_gymnasium>=0.6"]
PETTINGZOO = ["pettingzoo>=1.27", "pygame-ce>=2.3"]  # most of its own environments import pygame
ENVPOOL = ["envpool>=1.2; python_version >= '3.11'"]
# Its messages are rebuilt for today's protobuf. Version 1 needs an old numpy, and Python up to 3.10.12.
UNITY = ["mlagents-envs>=0.28,<0.29", "grpcio>=1.66", "protobuf>=4.25"]
MINARI = ["minari>=0.5", "h5py>=3.10"]  # datasets of demonstrations
RAY = ["ray>=2.40"]  # without Ray's own extras
# Files for Unity, and running them.
ONNX = ["onnx>=1.16", "onnxruntime>=1.19", "onnxscript>=0.5", "safetensors>=0.4"]
HUB = ["huggingface_hub>=0.30", "safetensors>=0.4"]  # sharing of runs
# Searches for settings.
TUNE = ["optuna>=5"]
# Recordings of episodes.
VIDEO = ["moviepy>=2.1"]
# Services that show runs: one of them, in addition to TensorBoard.
WANDB = ["wandb>=0.19"]
MLFLOW = ["mlflow-skinny>=3", "sqlalchemy>=2", "alembic>=1.10"]  # with the database of runs on this machine
TRACKIO = ["trackio>=0.30"]
TEST = ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "beartype>=0.19", "scipy>=1.11"]
TEST += ["nbclient>=0.10", "ipykernel>=6.29"]  # the notebook in examples/
# What the adapters' tests open; the Control Suite has no wheels of everything it needs for Python 3.13.
OPENED = ATARI + MINATAR + [f"{need}; python_version < '3.13'" for need in DM_CONTROL] + PETTINGZOO
# MiniGrid needs pygame for Python 3.10, which replaces the files of PettingZoo's pygame-ce.
OPENED += [f"{need}; python_version >= '3.11'" for need in MINIGRID]
# The documentation site: `make site`.
DOCS = ["sphinx>=8.1", "myst-parser>=4", "furo>=2024.8.6"]
DEV = ["ruff>=0.9", "mypy>=1.13", "types-PyYAML", "mutmut>=3.8; sys_platform != 'win32'"]
BENCHMARK = ["stable-baselines3>=2.7", "pfrl>=0.4"]


class BuildWithData(build_py):
    """A build that copies the default settings, the environment folders and the pages of docs/ into the package."""

    def run(self):
        """Copy modules, then data; an editable installation finds the data in the repository."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "algorithm" / "_data"
        shutil.rmtree(target, ignore_errors=True)
        for name in DATA:
            for path in _list_files(ROOT / name):
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def make_description() -> str:
    """Return the README for a package index, where paths lead nowhere: texts instead of pictures and links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[(.*?)\]\((?!https?:).*?\)", r"*(picture: \1)*", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:).*?\)", r"\1", text)


def find_addresses() -> dict[str, str]:
    """Return the addresses of the repository that is built, if its origin is on the web; otherwise there are none."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):  # such as an archive of it
        return {}
    command = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    origin = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(r"(?:https://(?:[^/@]+@)?|(?:ssh://)?git@)([^/:]+)[/:](.+?)(?:\.git)?/?", origin)
    if not found:
        return {}
    home = f"https://{found[1]}/{found[2]}"  # without a password in it
    pages = {"Documentation": "tree/HEAD/docs", "Changelog": "blob/HEAD/CHANGELOG.md", "Issues": "issues"}
    return {"Source": home, **{label: f"{home}/{page}" for label, page in pages.items()}}


def _list_files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder without compiled modules and hidden files."""
    if path.is_file():
        return [path]
    found = (each for each in sorted(path.rglob("*")) if each.is_file())
    return [each for each in found if each.suffix != ".pyc" and not each.name.startswith(".")]


setup(
    name="samara-rl",
    version=re.search(r'__version__ = "(.+)"', (ROOT / "algorithm" / "__init__.py").read_text(encoding="utf-8"))[1],
    description="Actor-critic agents on any simulator that Gymnasium, PettingZoo, Unity ML-Agents or Godot can open",
    long_description=make_description(),
    long_description_content_type="text/markdown",
    author="The Samara developers",
    project_urls=find_addresses(),
    license="MIT",
    keywords="reinforcement learning, actor-critic, ACER, SAC, Reactor, A2C, PPO, Gymnasium, PettingZoo, Unity, Godot",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: Microsoft :: Windows",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["algorithm", "algorithm.*"]),
    package_data={
        "algorithm": ["py.typed"],
        "algorithm.parts": ["recipes.yaml"],
        "algorithm.tools.reports": ["templates/*"],
    },
    cmdclass={"build_py": BuildWithData},
    entry_points={"console_scripts": ["samara=algorithm.cli.main:run_process"]},
    install_requires=[
        "torch>=2.9,<2.15",
        "numpy>=2",
        "gymnasium>=1.1,<2",
        "pyyaml>=6",
        "pydantic>=2.10",
        "typing_extensions>=4.12",  # which pydantic needs, too
        "rich>=13",
        "tensorboard>=2.18",
        "jaxtyping>=0.2.36",
        "packaging>=22",
        "pillow>=10.4",
        "jinja2>=3.1",
        *UNITY,
    ],
    extras_require={
        "render": RENDER,
        "box2d": BOX2D,
        "mujoco": MUJOCO,
        "atari": ATARI,
        "minatar": MINATAR,
        "minigrid": MINIGRID,
        "dm-control": DM_CONTROL,  # with a dash: pip 23 finds no extra with an underscore
        "pybullet": PYBULLET,
        "pettingzoo": PETTINGZOO,
        "envpool": ENVPOOL,
        "minari": MINARI,
        "onnx": ONNX,
        "hub": HUB,
        "tune": TUNE,
        "ray": RAY,
        "video": VIDEO,
        "report": [],  # pages of runs need nothing more; the name stays for commands of earlier versions
        "wandb": WANDB,
        "mlflow": MLFLOW,
        "trackio": TRACKIO,
        "test": TEST + OPENED + MINARI + ONNX + HUB + TUNE + RAY + VIDEO,
        "docs": DOCS,
        "dev": TEST + OPENED + MINARI + ONNX + HUB + TUNE + RAY + VIDEO + DEV + DOCS,
        "benchmark": BENCHMARK,
    },
)
