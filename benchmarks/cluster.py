"""Clusters: env steps per second by actors, env steps to the goal of gym/cartpole, learners, weights and rollouts.

With `speed`, each step of a CartPole environment sleeps 20 ms; the env steps per second of several actors, with one
environment each, are compared with those of one. With `learning`, ACER learns gym/cartpole with two actors and in one
process. With `learners`, ACER learns gym/cartpole with one and with two learners; the updates per second are compared.
With `weights`, each of several actors receives a flat array and copies it. With `rollouts`, rollouts of images arrive
and are added to a replay. All processes run in a network namespace that has only loopback.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from measure import describe_setup, format_sleeping_env, format_spread, run_in_subprocesses, train_folder

from algorithm import train
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.runtimes.ray_host import RayHost

INSIDE = "SAMARA_BENCHMARK_NAMESPACE"
SLEEP_SECONDS = 0.02
ENV = format_sleeping_env(SLEEP_SECONDS)
CONFIG = """
default:
  base_config: {env_type: GYM, env_name: env.py, algorithm: ACER, runtime: RAY, n_envs: 1, log_every: 500}
  cluster_config: {token_auth: false, cpus_per_actor: 0.1}
  acer_config: {rollout_length: 40, replay_ratio: 4, batch_size: 8}
"""
ON_RAY = (
    "base_config.runtime=RAY",
    "base_config.n_envs=2",
    "cluster_config.actors=2",
    "cluster_config.token_auth=false",
)
IMAGES = (40, 8, 4, 84, 84)  # rows, lanes, and the shape of an observation


def measure_speed(actors: int, env_steps: int) -> dict[str, float]:
    """Return env steps per second and mean lag of a run with slow environments, after the first rows of metrics."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        folder = Path("envs/benchmark/sleeping")
        folder.mkdir(parents=True)
        (folder / "env.py").write_text(ENV)
        (folder / "config.yaml").write_text(CONFIG)
        settings = {
            "cluster_config.actors": actors,
            "base_config.max_step": env_steps * actors,
            "base_config.log_every": env_steps * actors // 12,
        }
        result = train("benchmark/sleeping", name="run", settings=settings)
        table = np.genfromtxt(result.folder / "metrics.csv", delimiter=",", names=True, deletechars="")
        os.chdir("/")
    first = len(table) // 4
    env_steps_made, seconds = (table[name][-1] - table[name][first] for name in ("env_steps", "time/seconds"))
    return {"env_steps_per_second": env_steps_made / seconds, "lag": float(np.nanmean(table["cluster/lag"][first:]))}


def compare_speed(counts: list[int], repeats: int, env_steps: int) -> None:
    """Print the env steps per second of each number of actors, measured in turn, and the ratios to the first one."""
    results = run_in_subprocesses(measure_speed, [(actors, env_steps) for _ in range(repeats) for actors in counts])
    references = [result["env_steps_per_second"] for result in results[:: len(counts)]]
    for index, actors in enumerate(counts):
        found = results[index :: len(counts)]
        speeds = [result["env_steps_per_second"] for result in found]
        ratios = [speed / reference for speed, reference in zip(speeds, references, strict=True)]
        lag = np.mean([result["lag"] for result in found])
        print(
            f"{actors} actors: {format_spread(speeds)} env steps per second, {format_spread(ratios, 2)} times one; "
            f"mean lag {lag:.1f} versions"
        )


def compare_learning(seeds: int, first_seed: int) -> None:
    """Print the env steps to the goal of gym/cartpole in one process and with two actors."""
    numbers = range(first_seed, first_seed + seeds)
    medians = []
    for name, assignments in (("one process", ()), ("two actors", ON_RAY)):
        arguments = [("gym/cartpole", seed, ("base_config.max_step=60000", *assignments), 0) for seed in numbers]
        results = run_in_subprocesses(train_folder, arguments)
        steps = [result["env_steps"] for result in results]
        medians.append(np.median(steps))
        reached = sum(result["reached"] for result in results)
        print(f"{name}: reached {reached} of {seeds}; env steps {format_spread(steps)}")
    print(f"ratio of the medians {medians[1] / medians[0]:.2f}")


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
    results = run_in_subprocesses(
        measure_updates, [(learners, env_steps) for _ in range(repeats) for learners in counts]
    )
    for index, learners in enumerate(counts):
        found = results[index :: len(counts)]
        speeds = [result["updates_per_second"] for result in found]
        waiting = [result["waiting"] for result in found]
        print(
            f"{learners} learners: {format_spread(speeds)} updates per second; learner 0 waits for "
            f"{format_spread(waiting, 2)} of the time"
        )


class CopyingServer:
    """An actor that copies the array that it receives, and returns the seconds."""

    def __init__(self, index: int, replacements: int):
        self.copy = np.empty(0, np.float32)

    def open(self) -> None:
        """Do nothing."""

    def collect(self, weights: dict[str, np.ndarray], size: int) -> tuple[float, float]:
        """Return the seconds of the first copy into an existing array, and of a second one."""
        if len(self.copy) != size:
            self.copy = np.ones(size, np.float32)
        seconds = []
        for _ in range(2):
            start = perf_counter()
            self.copy[:] = weights["agent"]
            seconds.append(perf_counter() - start)
        return seconds[0], seconds[1]


class ImageServer:
    """An actor that returns rollouts of images."""

    def __init__(self, index: int, replacements: int):
        self.rng = np.random.default_rng(index)

    def open(self) -> None:
        """Do nothing."""

    def collect(self, weights: None, number: int) -> Rollout:
        """Return a rollout."""
        return make_rollout(self.rng, number > 0)


def make_rollout(rng: np.random.Generator, continues_previous: bool) -> Rollout:
    """Return a rollout of random images."""
    rows, lanes, *shape = IMAGES
    return Rollout(
        obs={"obs": rng.integers(0, 255, (rows + 1, lanes, *shape), np.uint8)},
        first=np.zeros((rows + 1, lanes), bool),
        raw_action=np.zeros((rows, lanes, 1), np.float32),
        reward=np.zeros((rows, lanes), np.float32),
        alive=np.ones((rows, lanes), bool),
        behavior=np.zeros((rows, lanes, 4), np.float32),
        memory=np.zeros((lanes, 0), np.float32),
        lane=np.arange(lanes),
        continues_previous=np.full(lanes, continues_previous),
        weight=np.ones(lanes, np.float32),
        index=np.full(lanes, -1),
        version=np.zeros(lanes, np.int64),
    )


def open_host(server: Any, actors: int) -> tuple[RayHost, list[Any]]:
    """Return a local cluster, and the handles of actors that are ready."""
    host = RayHost(server, address="local", cpus=0.1, gpus=0, local_cpus=2, uses_tokens=False)
    handles = [host.start(index, 0) for index in range(actors)]
    fetch_all(host, [host.open(handle) for handle in handles])
    return host, handles


def fetch_all(host: RayHost, tickets: list[Any]) -> list[Any]:
    """Wait for all tickets, and return the replies."""
    waiting = set(tickets)
    while waiting:
        waiting -= set(host.wait(list(waiting), 60.0))
    return [host.fetch(ticket) for ticket in tickets]


def measure_weights(parameters: int, actors: int, repeats: int) -> None:
    """Print the time per actor in which actors receive and copy weights, and the time of a copy."""
    host, handles = open_host(CopyingServer, actors)
    weights = {"agent": np.ones(parameters, np.float32)}
    published, received, copies = [], [], []
    for repeat in range(repeats + 1):  # the first one allocates memory
        start = perf_counter()
        reference = host.publish(weights)
        published_at = perf_counter()
        seconds = fetch_all(host, [host.request(handle, reference, parameters) for handle in handles])  # type: ignore
        if repeat:
            published.append(1000 * (published_at - start))
            received.append(1000 * (perf_counter() - published_at) / actors)
            copies += [1000 * second for _, second in seconds]
    host.close()
    print(
        f"weights of {parameters:,} parameters to {actors} actors: publish {format_spread(published, 1)} ms, receive "
        f"{format_spread(received, 1)} ms per actor; a copy in an actor takes {format_spread(copies, 1)} ms"
    )


def measure_rollouts(repeats: int) -> None:
    """Print the time in which a rollout of images is received and added to a replay, and the time of a copy."""
    host, (handle,) = open_host(ImageServer, 1)
    rows, lanes = IMAGES[:2]
    replay = Replay(capacity=10 * rows * lanes, lanes=lanes, chunk=rows, length=rows, rng=np.random.default_rng(0))
    fetched, added, copies = [], [], []
    for number in range(repeats + 10):  # the first ones allocate memory
        ticket = host.request(handle, None, number)  # type: ignore[arg-type]
        host.wait([ticket], 60.0)
        start = perf_counter()
        rollout = host.fetch(ticket)
        arrived = perf_counter()
        replay.add(rollout)
        end = perf_counter()
        target = np.empty_like(rollout.obs["obs"]) if not number else target
        before = perf_counter()
        target[:] = rollout.obs["obs"]
        if number >= 10:
            fetched.append(1000 * (arrived - start))
            added.append(1000 * (end - arrived))
            copies.append(1000 * (perf_counter() - before))
    host.close()
    size = rollout.obs["obs"].nbytes / 1e6
    print(
        f"rollouts of {size:.0f} MB: fetch {format_spread(fetched, 2)} ms, add to the replay {format_spread(added, 2)} "
        f"ms; a copy takes {format_spread(copies, 2)} ms"
    )


def main() -> None:
    """Print the measured figures."""
    kinds = ["speed", "learning", "learners", "weights", "rollouts"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=kinds, nargs="*", default=kinds)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8, 16], help="numbers of actors, for speed")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each number of actors, for speed")
    parser.add_argument("--env-steps", type=int, default=3000, help="env steps of each actor, for speed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    options = parser.parse_args()
    if INSIDE not in os.environ:
        enter = 'ip link set lo up && exec "$@"'
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", enter, "bash"]
        sys.exit(subprocess.call([*command, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}))
    print(f"{describe_setup()}; load average {os.getloadavg()[0]:.1f}")
    if "speed" in options.what:
        compare_speed(options.actors, options.repeats, options.env_steps)
    if "learning" in options.what:
        compare_learning(options.seeds, options.first_seed)
    if "learners" in options.what:
        compare_learners(options.repeats, 4 * options.env_steps)
    if "weights" in options.what:
        measure_weights(options.parameters, 8, 20)
    if "rollouts" in options.what:
        measure_rollouts(50)


if __name__ == "__main__":
    main()
