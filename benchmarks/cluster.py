"""Clusters: env steps per second by actors, env steps to the goal of gym/cartpole, costs and the model of them.

With `speed`, each step of a CartPole environment sleeps 20 ms; the env steps per second of several actors, with one
environment each, are compared with those of one; with `unity`, those of a scripted Unity player. With `learning`, ACER
learns gym/cartpole with two actors and in one process. With `learners`, ACER learns gym/cartpole with one and with two
learners; the updates per second are compared. With `weights`, each of several actors receives a flat array and copies
it. With `rollouts`, rollouts of images arrive and are added to a replay. With `model`, costs are measured at several
sizes and fitted, and the env steps per second of many actors are predicted. All processes run in a network namespace
that has only loopback.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from cluster_costs import (
    ACTIONS,
    IMAGE,
    SEQUENCE_LENGTH,
    CopyingServer,
    count_parameters,
    make_learner,
    measure_rollouts,
    measure_update,
    measure_weights,
    open_host,
    print_rollouts,
    print_weights,
    start_actors,
)
from cluster_model import ClusterModel, LinearCost, Measurement, Workload, compute_relative_errors, fit_cost
from measure import describe_setup, format_sleeping_env, format_spread, run_in_subprocesses, train_folder

from algorithm import train
from algorithm.parts.torch_setup import configure_torch
from tests.unity_player.launcher import make_player

INSIDE = "SAMARA_BENCHMARK_NAMESPACE"
SLEEP_SECONDS = 0.02
ROLLOUT_LENGTH = 40
CONFIG = f"""
default:
  base_config: {{env_type: GYM, env_name: env.py, algorithm: ACER, n_envs: 1}}
  acer_config: {{rollout_length: {ROLLOUT_LENGTH}, sequence_length: {SEQUENCE_LENGTH}, replay_ratio: 4, batch_size: 8}}
"""
IMAGE_ENV = f"""
import time
import gymnasium
import numpy as np


class Images(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, {IMAGE}, np.uint8)
    action_space = gymnasium.spaces.Discrete({ACTIONS})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {{}}

    def step(self, action):
        time.sleep({SLEEP_SECONDS})
        image = np.full({IMAGE}, self.np_random.integers(255), np.uint8)
        return image, 1.0, self.np_random.random() < 0.01, False, {{}}


def make():
    return Images()
"""
ON_RAY = (
    "base_config.runtime=RAY",
    "base_config.n_envs=2",
    "cluster_config.actors=2",
    "cluster_config.token_auth=false",
)
PREDICTED = (100, 1000)  # actors
TERMS = {
    "rollout": ("constant", "megabytes", "actors"),
    "publish": ("constant", "parameters"),
    "receive": ("constant", "parameters"),
    "update": ("constant", "rows"),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run whose speed is measured: an env.py that is written into a new folder, or a folder below envs/."""

    env: str = ""
    folder: str = ""
    assignments: tuple[str, ...] = ()


SLEEPING = Run(env=format_sleeping_env(SLEEP_SECONDS))


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task whose speed on a cluster is predicted.

    Attributes:
        name: its name.
        env: the text of its env.py.
        shape: shape of an observation.
        dtype: dtype of an observation.
        sequences: sequences in a batch.
        replay_ratio: replayed batches per rollout.
        held_out_runs: actors and replay_ratio of runs that the model is compared with.
    """

    name: str
    env: str
    shape: tuple[int, ...]
    dtype: str
    sequences: int
    replay_ratio: float
    held_out_runs: tuple[tuple[int, float], ...]

    @property
    def updates(self) -> dict[int, float]:
        """Return the updates after a rollout: one with the rollout itself, the others with replayed batches."""
        return {ROLLOUT_LENGTH: 1, self.sequences * SEQUENCE_LENGTH: self.replay_ratio}

    def make_run(self) -> Run:
        """Return a run of the task."""
        assignments = (
            f"acer_config.replay_ratio={self.replay_ratio}",
            f"acer_config.batch_size={self.sequences}",
            "acer_config.learning_starts=100",
        )
        return Run(env=self.env, assignments=assignments)


TASKS = (
    Task(
        name="CartPole, 20 ms per step",
        env=format_sleeping_env(SLEEP_SECONDS),
        shape=(4,),
        dtype="float32",
        sequences=8,
        replay_ratio=4,
        held_out_runs=((8, 4), (8, 32)),
    ),
    Task(
        name="images of 84x84x4, 20 ms per step",
        env=IMAGE_ENV,
        shape=IMAGE,
        dtype="uint8",
        sequences=4,
        replay_ratio=1,
        held_out_runs=((4, 1), (8, 4)),
    ),
)


def measure_speed(run: Run, actors: int, env_steps: int) -> dict[str, float]:
    """Return env steps per second and mean lag of a run with slow environments, after the first rows of metrics.

    Args:
        run: the run.
        actors: number of actors.
        env_steps: env steps of each actor.
    """
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        if run.env:
            folder = Path("envs/benchmark/task")
            folder.mkdir(parents=True)
            (folder / "env.py").write_text(run.env)
            (folder / "config.yaml").write_text(CONFIG)
        settings = {
            **{name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in run.assignments)},
            "base_config.runtime": "RAY",
            "base_config.max_step": env_steps * actors,
            "base_config.log_every": env_steps * actors // 12,
            "cluster_config.actors": actors,
            "cluster_config.cpus_per_actor": 0.1,
            "cluster_config.token_auth": False,
        }
        result = train(run.folder or "benchmark/task", name="run", settings=settings)
        table = np.genfromtxt(result.folder / "metrics.csv", delimiter=",", names=True, deletechars="")
        os.chdir("/")
    first = len(table) // 4
    env_steps_made, seconds = (table[name][-1] - table[name][first] for name in ("env_steps", "time/seconds"))
    return {"env_steps_per_second": env_steps_made / seconds, "lag": float(np.nanmean(table["cluster/lag"][first:]))}


def compare_speed(run: Run, counts: list[int], repeats: int, env_steps: int) -> None:
    """Print the env steps per second of each number of actors, measured in turn, and the ratios to the first one."""
    settings = [(run, actors, env_steps) for _ in range(repeats) for actors in counts]
    results = run_in_subprocesses(measure_speed, settings)
    references = [result["env_steps_per_second"] for result in results[:: len(counts)]]
    print("\n| actors | env steps per second | relative to the first | mean lag, in versions |")
    print("| ---: | ---: | ---: | ---: |")
    for index, actors in enumerate(counts):
        found = results[index :: len(counts)]
        speeds = [result["env_steps_per_second"] for result in found]
        ratios = [speed / reference for speed, reference in zip(speeds, references, strict=True)]
        lag = np.mean([result["lag"] for result in found])
        print(f"| {actors} | {format_spread(speeds)} | {format_spread(ratios, 2)} | {lag:.1f} |")


def compare_learning(seeds: int, first_seed: int) -> None:
    """Print the env steps to the goal of gym/cartpole in one process and with two actors."""
    numbers = range(first_seed, first_seed + seeds)
    medians = []
    print("\n| | reached | env steps to the goal | env steps of the run |\n| --- | ---: | ---: | ---: |")
    for name, assignments in (("one process", ()), ("two actors", ON_RAY)):
        arguments = [("gym/cartpole", seed, ("base_config.max_step=60000", *assignments), 0) for seed in numbers]
        results = run_in_subprocesses(train_folder, arguments)
        steps = [result["env_steps"] for result in results]
        medians.append(np.median(steps))
        reached = sum(result["reached"] for result in results)
        at_end = format_spread(result["run_env_steps"] for result in results)
        print(f"| {name} | {reached} of {seeds} | {format_spread(steps)} | {at_end} |", flush=True)
    print(f"\nratio of the medians of the env steps to the goal: {medians[1] / medians[0]:.2f}")


def compare_unity(counts: list[int], repeats: int, env_steps: int) -> None:
    """Print the env steps per second of a Unity player that sleeps in every tick, by the number of actors."""
    with tempfile.TemporaryDirectory() as place:
        player = make_player(Path(place), "balance_ball", "--slow", str(SLEEP_SECONDS))
        run = Run(
            folder="unity/3dball",
            assignments=(
                f'base_config.unity_args.build_path="{player}"',
                "goal.return=null",
                "acer_config.replay_ratio=1",
            ),
        )
        compare_speed(run, counts, repeats, env_steps)


def measure_updates(learners: int, env_steps: int) -> dict[str, float]:
    """Return updates per second, and the fraction of time in which learner 0 waits for the others."""
    with tempfile.TemporaryDirectory() as place:
        envs = Path(__file__).resolve().parents[1] / "envs"
        os.chdir(place)
        Path("envs").symlink_to(envs)
        settings = {
            "base_config.runtime": "RAY",
            "base_config.max_step": env_steps,
            "base_config.log_every": env_steps // 12,
            "goal.return": None,
            "cluster_config.learners": learners,
            "cluster_config.token_auth": False,
        }
        result = train("gym/cartpole", name="run", settings=settings)
        table = np.genfromtxt(result.folder / "metrics.csv", delimiter=",", names=True, deletechars="")
        os.chdir("/")
    first = len(table) // 4
    updates, seconds = (table[name][-1] - table[name][first] for name in ("time/updates", "time/seconds"))
    waiting = np.nanmean(table["cluster/learner_0_waiting"][first:]) if learners > 1 else 0.0
    return {"updates_per_second": updates / seconds, "waiting": float(waiting)}


def compare_learners(repeats: int, env_steps: int) -> None:
    """Print the updates per second of one learner and of two, measured in turn."""
    counts = (1, 2)
    print("\n| learners | updates per second | fraction of waiting of learner 0 |\n| ---: | ---: | ---: |")
    results = run_in_subprocesses(
        measure_updates, [(learners, env_steps) for _ in range(repeats) for learners in counts]
    )
    for index, learners in enumerate(counts):
        found = results[index :: len(counts)]
        speeds = [result["updates_per_second"] for result in found]
        waiting = [result["waiting"] for result in found]
        print(f"| {learners} | {format_spread(speeds)} | {format_spread(waiting, 2)} |")


def measure_costs(repeats: int) -> dict[str, tuple[list[Measurement], list[Measurement]]]:
    """Return the measurements that each cost is fitted to, and those that are held out."""
    sizes = [((16,), 2), ((16,), 32), ((16,), 512), ((7056,), 16), (IMAGE, 2), (IMAGE, 8)]
    held_out_sizes = [((16,), 128), ((7056,), 4), (IMAGE, 4)]
    rollouts, held_out_rollouts = (
        [measure_rollouts(ROLLOUT_LENGTH, shape, actors, repeats) for shape, actors in each]
        for each in (sizes, held_out_sizes)
    )
    host = open_host()
    handles = start_actors(host, CopyingServer, 8)

    def measure_broadcasts(settings: list[tuple[int, int]]) -> tuple[list[Measurement], list[Measurement]]:
        published, received = [], []
        for parameters, actors in settings:
            seconds = measure_weights(host, handles[:actors], parameters, repeats)
            millions = {"parameters": parameters / 1e6}
            published.append(Measurement(millions, float(np.median(seconds["publish_cpu"]))))
            received.append(Measurement(millions, min(seconds["receive"])))
        return published, received

    weights = measure_broadcasts([(10**digits, actors) for digits in (4, 5, 6, 7) for actors in (2, 8)])
    held_out_weights = measure_broadcasts([(30_000, 4), (300_000, 4), (3_000_000, 4)])
    host.close()
    return {
        "rollout": (rollouts, held_out_rollouts),
        "publish": (weights[0], held_out_weights[0]),
        "receive": (weights[1], held_out_weights[1]),
    }


def fit_model(task: Task, repeats: int, env_steps: int, shared: dict[str, LinearCost]) -> tuple[ClusterModel, Workload]:
    """Fit the updates of a task, measure the seconds of a rollout of one actor, and print both."""
    learner = make_learner(task.shape, task.dtype)
    fitted, held_out = (
        [measure_update(learner, task.shape, task.dtype, sequences, repeats) for sequences in each]
        for each in ((1, 2, 8, 32), (4, 16))
    )
    update = fit_cost(TERMS["update"], fitted)
    print_cost(f"update, {task.name}", update, fitted, held_out)
    model = ClusterModel(update=update, **shared)
    load = Workload(
        env_steps=ROLLOUT_LENGTH,
        seconds=0.0,
        megabytes=(ROLLOUT_LENGTH + 1) * np.dtype(task.dtype).itemsize * float(np.prod(task.shape)) / 1e6,
        parameters=count_parameters(learner),
        updates=task.updates,
    )
    (alone,) = run_in_subprocesses(measure_speed, [(task.make_run(), 1, env_steps)])
    seconds = ROLLOUT_LENGTH / alone["env_steps_per_second"] - model.compute_actor_seconds(load)
    return model, replace(load, seconds=seconds)


def print_model(repeats: int, env_steps: int) -> None:
    """Print the costs of a cluster with their errors, and the env steps per second that they predict."""
    shared = {}
    for name, (fitted, held_out) in measure_costs(repeats).items():
        shared[name] = fit_cost(TERMS[name], fitted)
        print_cost(name, shared[name], fitted, held_out)
    for task in TASKS:
        model, load = fit_model(task, repeats, env_steps, shared)
        print(
            f"{task.name}: an actor takes {1000 * model.compute_actor_seconds(load):.0f} ms, the learner "
            f"{1000 * model.compute_learner_seconds(load, 1):.1f} ms per rollout"
        )
        for actors, replay_ratio in task.held_out_runs:
            run = replace(task, replay_ratio=replay_ratio)
            predicted = model.predict_speed(replace(load, updates=run.updates), actors)
            (measured,) = run_in_subprocesses(measure_speed, [(run.make_run(), actors, env_steps)])
            speed = measured["env_steps_per_second"]
            print(
                f"  held-out run, {actors} actors, replay_ratio {replay_ratio:g}: predicted {predicted:,.0f}, "
                f"measured {speed:,.0f} env steps per second, error {predicted / speed - 1:+.0%}"
            )
        for name, each in (("learner on this CPU", load), ("learner without updates", replace(load, updates={}))):
            speeds = ", ".join(f"{actors} actors {model.predict_speed(each, actors):,.0f}" for actors in PREDICTED)
            print(
                f"  prediction, {name}: {speeds} env steps per second; saturated from "
                f"{model.find_saturation(each):,} actors",
                flush=True,
            )


def print_cost(name: str, cost: LinearCost, fitted: list[Measurement], held_out: list[Measurement]) -> None:
    """Print a fitted cost with its relative errors."""
    terms = " + ".join(f"{1000 * seconds:.4g} {unit}" for unit, seconds in cost.seconds_per_unit.items())
    errors, held_out_errors = (compute_relative_errors(cost, each) for each in (fitted, held_out))
    print(
        f"{name}: {terms} (ms); error of {len(fitted)} fitted settings {_format_errors(errors)}, of {len(held_out)} "
        f"held-out ones {_format_errors(held_out_errors)}",
        flush=True,
    )


def _format_errors(errors: list[float]) -> str:
    return f"{np.median(np.abs(errors)):.0%} [{min(errors):+.0%} - {max(errors):+.0%}]"


def main() -> None:
    """Print the measured figures."""
    kinds = ["speed", "unity", "learning", "learners", "weights", "rollouts", "model"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=kinds, nargs="*", default=kinds)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8, 16], help="numbers of actors, for speed")
    parser.add_argument("--unity-actors", type=int, nargs="+", default=[1, 4], help="numbers of actors, for unity")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each number of actors")
    parser.add_argument("--env-steps", type=int, default=3000, help="env steps of each actor")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    options = parser.parse_args()
    if INSIDE not in os.environ:
        enter = 'ip link set lo up && exec "$@"'
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", enter, "bash"]
        sys.exit(subprocess.call([*command, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}))
    configure_torch()
    print(f"{describe_setup()}; load average {os.getloadavg()[0]:.1f}")
    if "speed" in options.what:
        compare_speed(SLEEPING, options.actors, options.repeats, options.env_steps)
    if "unity" in options.what:
        compare_unity(options.unity_actors, options.repeats, options.env_steps)
    if "learning" in options.what:
        compare_learning(options.seeds, options.first_seed)
    if "learners" in options.what:
        compare_learners(options.repeats, 4 * options.env_steps)
    if "weights" in options.what:
        print_weights(options.parameters, 8, 20)
    if "rollouts" in options.what:
        print_rollouts(50)
    if "model" in options.what:
        print_model(30, options.env_steps)


if __name__ == "__main__":
    main()
