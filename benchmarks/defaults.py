"""Compare the suggested settings with Stable-Baselines3 and the settings of RL Baselines3 Zoo, without any tuning.

The settings of the zoo are those of zoo.yaml. All runs have the same number of env steps; PPO completes its last
rollout. Then the last weights play 100 greedy episodes, which start in the same states for all learners; in FrozenLake,
whose best policies 100 episodes cannot distinguish, the expected return is computed from the model of the environment.
The score is the distance from random actions, in units of the better learner of Stable-Baselines3. Samara trains with
the settings that `init` suggests, without a goal and without evaluations, so that the CPU seconds of all learners are
those of training alone. Results are kept in a folder, one file for each run, so that the table can be made in several
calls; a run of Samara that was interrupted continues if `--runs` names the folder of its runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import measure  # noqa: E402, F401  # sets the path of the repository, and imports what a run would import otherwise

from algorithm.adapters.gym_ids import register_plugins  # noqa: E402
from algorithm.config.yaml_layers import read_yaml  # noqa: E402

ZOO = Path(__file__).with_name("zoo.yaml")
RANDOM = "random"  # the learner that does not learn
EPISODES = 100  # of an evaluation
FIRST_EPISODE = 1_000_000  # seed of the first episode of an evaluation
DISCRETE, CONTINUOUS = ("PPO", "DQN"), ("PPO", "SAC")


@dataclass(frozen=True)
class Task:
    """An environment, and the env steps of a run in it.

    Attributes:
        module: The module that registers the environment.
        has_model: Whether the expected return is computed from the model of the environment.
        has_image: Whether Stable-Baselines3 needs convolutions of its user, since its own need 36 x 36 pixels.
    """

    env_id: str
    env_steps: int
    peers: tuple[str, ...] = DISCRETE
    env_args: Mapping[str, Any] = field(default_factory=dict)
    module: str = "gymnasium"
    has_model: bool = False
    has_image: bool = False

    @property
    def name(self) -> str:
        """The id without its namespace and its version."""
        return self.env_id.rpartition("/")[2].partition("-v")[0]


# The twelve, and the games of MinAtar, which have no limit of steps.
MINATAR = [f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")]
IMAGE = {"peers": ("PPO",), "env_args": {"max_episode_steps": 5000}, "module": "minatar", "has_image": True}
TASKS = {
    task.name: task
    for task in (
        Task("CartPole-v1", 40_000),
        Task("Acrobot-v1", 60_000),
        Task("MountainCar-v0", 150_000),
        Task("FrozenLake-v1", 150_000, has_model=True),
        Task("CliffWalking-v1", 60_000, env_args={"max_episode_steps": 200}),
        Task("Taxi-v4", 60_000),
        Task("LunarLander-v3", 200_000),
        Task("MiniGrid-Empty-5x5-v0", 50_000, module="minigrid"),
        Task("Pendulum-v1", 15_000, CONTINUOUS),
        Task("Reacher-v5", 50_000, CONTINUOUS),
        Task("Hopper-v5", 50_000, CONTINUOUS),
        Task("BipedalWalker-v3", 200_000, CONTINUOUS),
        *(Task(game, 1_000_000, **IMAGE) for game in MINATAR),
    )
}


def train_samara(task: Task, seed: int, runs: Path) -> dict[str, Any]:
    """Train with the suggested settings, or continue an interrupted run in `runs`, and return the figures of the run.

    The CPU seconds are those from the probe of the environment on, or of the checkpoint of a run that continues.
    """
    from algorithm import load, train
    from algorithm.parts.run_folder import RUNS, RunFolder

    for module in ("algorithm.agents.ppo", "algorithm.agents.a2c"):
        importlib.import_module(module)
    settings = {
        "base_config": {"seed": seed, "max_step": task.env_steps, "evaluate_every": None, "env_args": task.env_args},
        "goal": None,
    }
    os.chdir(runs)  # of a process that makes this run alone
    name, begin = f"seed-{seed}", time.process_time()
    if RunFolder(RUNS / task.env_id / name).has_learned():
        result = train(task.env_id, name=name, resume=True)
        seconds = result.counters.cpu_seconds
    else:
        result = train(task.env_id, name=name, settings=settings, replace=True)
        seconds = time.process_time() - begin
    figures = {"env_steps": result.counters.env_steps, "cpu_seconds": seconds}
    agent = load(result.folder, disable_sample=True)
    names = agent.role.obs_specs

    def act(obs: Any, info: Mapping[str, Any]) -> Any:
        readable = {name: obs[name] for name in names if name in obs} if isinstance(obs, dict) else obs
        return agent.act(readable, info.get("action_mask"))

    return figures | {"greedy": evaluate(task, make_env(task), act, agent.reset)}


def train_sb3(algorithm: str, task: Task, seed: int) -> dict[str, Any]:
    """Train an algorithm of Stable-Baselines3 with its settings of the zoo, and return the figures of the run."""
    with contextlib.redirect_stderr(io.StringIO()):  # without the deprecation notice of gym, if that is installed
        sb3 = importlib.import_module("stable_baselines3")
    vector = importlib.import_module("stable_baselines3.common.vec_env")
    settings = {"normalize": False, "n_envs": 1, **read_zoo(task).get(algorithm, {})}
    is_normalized, n_envs = settings.pop("normalize"), settings.pop("n_envs")
    begin = time.process_time()
    env = vector.DummyVecEnv([lambda: make_env(task, for_sb3=True)] * n_envs)
    env = vector.VecNormalize(env, gamma=settings.get("gamma", 0.99)) if is_normalized else env
    if task.has_image:
        settings["policy_kwargs"] = {"features_extractor_class": make_convolution(), "net_arch": []}
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(task.env_steps)
    figures = {"env_steps": model.num_timesteps, "cpu_seconds": time.process_time() - begin}

    def act(obs: Any, info: Mapping[str, Any]) -> Any:
        obs = env.normalize_obs(np.asarray(obs)) if is_normalized else np.asarray(obs)
        action, _ = model.predict(obs, deterministic=True)
        return action if action.ndim else int(action)

    return figures | {"greedy": evaluate(task, make_env(task, for_sb3=True), act)}


def make_convolution() -> type:
    """Return the network of MinAtar's paper as a class for Stable-Baselines3: 16 filters of 3 x 3, then 128 units."""
    nn = importlib.import_module("torch.nn")
    base = importlib.import_module("stable_baselines3.common.torch_layers").BaseFeaturesExtractor

    class Convolution(base):
        def __init__(self, space: Any):
            super().__init__(space, 128)
            (height, width, channels), relu = space.shape, nn.ReLU()
            hidden = nn.Linear(16 * (height - 2) * (width - 2), 128)
            self.layers = nn.Sequential(nn.Conv2d(channels, 16, 3), relu, nn.Flatten(), hidden, relu)

        def forward(self, cells: Any) -> Any:
            return self.layers(cells.float().movedim(-1, 1))

    return Convolution


def read_zoo(task: Task) -> dict[str, dict[str, Any]]:
    """Return the settings of each learner for a task, as Stable-Baselines3 takes them."""

    def convert(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("lin_"):
            return lambda left: left * float(value[4:])
        if isinstance(value, dict) and "activation_fn" in value:
            return {**value, "activation_fn": getattr(importlib.import_module("torch.nn"), value["activation_fn"])}
        return value

    learners = read_yaml(ZOO).get(task.name, {})
    return {learner: {key: convert(value) for key, value in own.items()} for learner, own in learners.items()}


def play_randomly(task: Task, seed: int) -> dict[str, Any]:
    """Return the return of random actions."""
    env = make_env(task)
    if task.has_model:
        from frozen_lake import compute_success

        return {"greedy": compute_success(np.full((16, 4), 0.25))}
    env.action_space.seed(seed)
    return {"greedy": evaluate(task, env, lambda obs, info: env.action_space.sample())}


def evaluate(task: Task, env: Any, act: Callable[[Any, Any], Any], reset: Callable[[], object] = lambda: None) -> float:
    """Return the mean return of episodes, of whose observations and infos `act` selects the actions, after `reset`."""
    if task.has_model:
        from frozen_lake import compute_success

        reset()
        return compute_success(np.eye(4)[[act(np.int64(state), {}) for state in range(16)]])
    total = 0.0
    for seed in range(FIRST_EPISODE, FIRST_EPISODE + EPISODES):
        obs, info = env.reset(seed=seed)
        reset()
        is_over = False
        while not is_over:
            obs, reward, terminated, truncated, info = env.step(act(obs, info))
            total += float(reward)
            is_over = terminated or truncated
    return total / EPISODES


def make_env(task: Task, for_sb3: bool = False) -> Any:
    """Return an environment; for Stable-Baselines3 of MiniGrid only the image, a vector that is not divided by 255."""
    import gymnasium

    if task.module == "minigrid" and for_sb3:
        wrappers = importlib.import_module("minigrid.wrappers")
        image = wrappers.ImgObsWrapper(gymnasium.make(task.env_id, **task.env_args))
        return gymnasium.wrappers.FlattenObservation(image)
    return gymnasium.make(task.env_id, **task.env_args)


def train(learner: str, task: Task, seed: int, runs: Path) -> dict[str, Any]:
    """Train after the imports, so that the measured time does not contain them."""
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module(task.module)
    register_plugins(task.env_id.rpartition("/")[0])
    importlib.import_module("torch._dynamo")  # otherwise the first optimizer imports it
    if learner == RANDOM:
        return play_randomly(task, seed)
    return train_samara(task, seed, runs) if learner == "Samara" else train_sb3(learner, task, seed)


def collect(folder: Path, runs: Path, names: list[str], learners: list[str], seeds: list[int]) -> Iterator[str]:
    """Make the runs that have no file in `folder`, one after the other, and yield a line for each."""
    for seed in seeds:
        for name in names:
            task = TASKS[name]
            for learner in ("Samara", *task.peers, RANDOM):
                path = folder / f"{name}.{learner}.{seed}.json"
                if learner not in learners or path.exists():
                    continue
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    figures = pool.submit(train, learner, task, seed, runs).result()
                path.write_text(json.dumps(figures), encoding="utf-8")
                yield f"{name} {learner} seed {seed}: " + ", ".join(
                    f"{key} {value:,.2f}" for key, value in figures.items()
                )


def print_table(folder: Path, names: list[str], seeds: list[int]) -> None:
    """Print a row for each environment: mean returns, CPU seconds, and the scores in units of SB3's better learner."""
    print(f"Mean return of {EPISODES} greedy episodes with the last weights, mean over seeds, and CPU seconds.\n")
    print("| environment | env steps | Samara | CPU s | SB3's better learner | CPU s | random | score | CPU |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        learners = ("Samara", RANDOM, *TASKS[name].peers)
        results = {learner: read_results(folder, name, learner, seeds) for learner in learners}
        peers = {learner: results[learner] for learner in TASKS[name].peers if results[learner]}
        if not (results["Samara"] and results[RANDOM] and peers):
            continue
        best = max(peers, key=lambda learner: average(peers[learner], "greedy"))
        ours, theirs, random = results["Samara"], peers[best], average(results[RANDOM], "greedy")
        gain, distance = (average(runs, "greedy") - random for runs in (ours, theirs))
        score = f"{gain / distance:.2f}" if distance > 0 else "above" if gain >= distance else "below"
        cpu = average(ours, "cpu_seconds") / average(theirs, "cpu_seconds")
        cells = [name, f"{TASKS[name].env_steps:,}", *format_runs(ours)]
        first, *rest = format_runs(theirs)
        print(f"| {' | '.join([*cells, f'{best}: {first}', *rest, f'{random:,.2f}', score, f'{cpu:.2f}'])} |")


def read_results(folder: Path, name: str, learner: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Return the figures of the runs of a learner that have ended."""
    paths = (folder / f"{name}.{learner}.{seed}.json" for seed in seeds)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def average(runs: list[dict[str, Any]], figure: str) -> float:
    """Return the mean of a figure over runs."""
    return statistics.fmean(run[figure] for run in runs)


def format_runs(runs: list[dict[str, Any]]) -> list[str]:
    """Return the cells of the mean return, with that of each run, and of the CPU seconds."""
    returns = ", ".join(f"{run['greedy']:,.2f}" for run in runs)
    return [f"{average(runs, 'greedy'):,.2f} ({returns})", f"{average(runs, 'cpu_seconds'):,.1f}"]


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    everything = ["Samara", "PPO", "DQN", "SAC", RANDOM]
    parser.add_argument("--learners", nargs="*", default=everything, choices=everything)
    parser.add_argument("--seeds", nargs="+", type=int, default=[7000, 7001])
    parser.add_argument(
        "--runs", type=Path, help="folder that keeps the runs of Samara, so that interrupted ones continue"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        runs = (options.runs or Path(temporary)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        for line in collect(options.folder, runs, options.tasks, options.learners, options.seeds):
            print(line, flush=True)
    print_table(options.folder, options.tasks, options.seeds)


if __name__ == "__main__":
    main()
