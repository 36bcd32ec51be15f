"""Unity's protocol with a scripted player: speed relative to ML-Agents' client, the goal of 3DBall, a run with crashes.

Speeds are of wall time, since player and trainer are separate processes; both are measured alternately.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measure import StepRecorder, compare, describe_setup, format_spread, run_in_subprocesses, train_folder

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.compat import load_api
from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import read_assignments, resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.networks import Blueprint, Conv, Mlp, Vector
from algorithm.parts import run_folder
from algorithm.parts.torch_setup import configure_torch
from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.learner import Learner
from tests.adapters.unity.played import SECTION
from tests.unity_player.launcher import make_player

UNITY_ARGS = {**SECTION, "timeout_wait": 30.0}
SLOW = 0.02  # seconds that the slow player sleeps in each tick
# hwc is the layout that version 0.28 of ML-Agents' client supports.
IMAGES = ("--size", "84", "--agents", "12", "--layout", "hwc")
PORT = 6105


def measure_mlagents_client(player: Path, ticks: int) -> float:
    """Return the ticks per second of ML-Agents' client with random actions."""
    load_api()
    from mlagents_envs.environment import UnityEnvironment

    env = UnityEnvironment(str(player), base_port=PORT, no_graphics=False, timeout_wait=30)
    try:
        env.reset()
        return measure_rate(lambda: _step_randomly(env), ticks)
    finally:
        env.close()


def _step_randomly(env: Any) -> None:
    """Set random actions for all agents that request one, and step."""
    for name, spec in env.behavior_specs.items():
        requests, _ = env.get_steps(name)
        if len(requests):
            env.set_actions(name, spec.action_spec.random_action(len(requests)))
    env.step()


@contextmanager
def open_adapter(player: Path, n_envs: int = 1) -> Iterator[UnityAdapter]:
    """Open an adapter of `n_envs` players, and close it afterwards."""
    adapter = UnityAdapter(EnvConfig(name="", n_envs=n_envs, section={**UNITY_ARGS, "build_path": str(player)}))
    try:
        yield adapter
    finally:
        adapter.close()


def measure_acting(player: Path, ticks: int, n_envs: int = 1) -> float:
    """Return the ticks per second of all players together while an agent acts and does not learn."""
    with open_adapter(player, n_envs) as adapter:

        def make_components(name: str, role: Any) -> AgentComponents:
            image = any(len(spec.shape) == 3 for spec in role.obs_specs.values())
            blueprint = (
                Blueprint({"*": Conv((16, 8, 4), units=64)})
                if image
                else Blueprint({"*": Vector()}, policy=Mlp(64, 64), critic=Mlp(64, 64))
            )
            agent = Acer(resolve([]).agent, blueprint, role, np.random.default_rng(0))
            return AgentComponents(
                role=role,
                agent=agent,
                scheduler=None,
                learner=Learner(agent, role, {}, None),  # type: ignore[arg-type]
            )

        actor = Actor(TrainingComponents(adapter, make_components), seed=0)

        def tick() -> None:
            actor.complete_rollouts()
            actor.act()
            actor.receive()

        return n_envs * measure_rate(tick, ticks)


def measure_adapter(player: Path, ticks: int) -> float:
    """Return the ticks per second of the adapter with actions of zero."""
    with open_adapter(player) as adapter:
        steps = adapter.reset(0)

        def tick() -> None:
            nonlocal steps
            sizes = {role: (len(step.lane), adapter.roles[role].action_spec.size) for role, step in steps.items()}
            steps = adapter.step({role: np.zeros(size, np.float32) for role, size in sizes.items()})

        return measure_rate(tick, ticks)


def measure_rate(tick: Callable[[], Any], ticks: int) -> float:
    """Return the calls per second, after a warm-up of 1/20 of the calls."""
    for _ in range(max(ticks // 20, 1)):
        tick()
    begin = time.perf_counter()
    for _ in range(ticks):
        tick()
    return ticks / (time.perf_counter() - begin)


def measure_training(player: Path, ticks: int) -> float:
    """Return the ticks per second of twelve agents while they learn, without the first tenth of the run."""
    recorder = StepRecorder()
    _train(player, [f"base_config.max_step={12 * ticks}"], callbacks=[recorder])
    learning = [point for point in recorder.points if point[1] > 1.2 * ticks]
    return (learning[-1][1] - learning[0][1]) / (learning[-1][0] - learning[0][0]) / 12


def _train(
    player: Path,
    changes: list[str],
    log: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train unity/3dball without a goal. Log the checkpoints that are kept."""
    source = run_folder.find_environment_folder("unity/3dball")
    assignments = [f'base_config.unity_args.build_path="{player}"', "goal.return=null", *changes]
    layers = [("3dball", read_variant(source / "config.yaml", "default")), ("benchmark", read_assignments(assignments))]
    with TemporaryDirectory() as runs:
        run_folder.RUNS = Path(runs)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create("unity/3dball", source, "run", settings.tree)
        result = train(settings, folder, log, callbacks)
        log(f"checkpoints: {', '.join(path.name for path in sorted((folder.path / 'checkpoints').glob('[0-9]*')))}")
    return result


def print_speeds(folder: Path, rounds: int) -> None:
    """Print rates and their ratios to the rates of a reference."""
    ball = make_player(_make_folder(folder, "ball"), "balance_ball")
    slow = make_player(_make_folder(folder, "slow"), "balance_ball", "--slow", str(SLOW))
    images = make_player(_make_folder(folder, "images"), "grid", *IMAGES)
    print("| comparison | reference, ticks/s | measured, ticks/s | ratio |")
    print("| --- | ---: | ---: | ---: |")
    cells = compare(rounds, lambda: measure_acting(ball, 600), lambda: measure_mlagents_client(ball, 600))
    print(f"| acting, relative to ML-Agents' client with random actions | {cells} |", flush=True)
    cells = compare(rounds, lambda: measure_adapter(images, 150), lambda: measure_mlagents_client(images, 150))
    print(f"| 12 images of 84x84x3 without an agent, relative to ML-Agents' client | {cells} |", flush=True)
    cells = compare(rounds, lambda: measure_training(slow, 1000), lambda: measure_mlagents_client(slow, 300))
    print(f"| learning with a player of 20 ms per tick, relative to ML-Agents' client | {cells} |", flush=True)
    cells = compare(rounds, lambda: measure_training(slow, 1000), lambda: measure_acting(slow, 300))
    print(f"| learning with such a player, relative to acting alone | {cells} |", flush=True)
    cells = compare(rounds, lambda: measure_acting(slow, 300, 4), lambda: measure_acting(slow, 300))
    print(f"| four such players, relative to one | {cells} |", flush=True)


def print_ball(folder: Path, seeds: range) -> None:
    """Print the decisions of twelve agents until evaluation episodes confirm 90% of the best return."""
    player = make_player(_make_folder(folder, "ball"), "balance_ball")
    changes = (f'base_config.unity_args.build_path="{player}"', "goal.return=18", "base_config.max_step=150000")
    results = run_in_subprocesses(train_folder, [("unity/3dball", seed, changes, 20) for seed in seeds])
    print("| seed | decisions | updates | CPU s of the trainer | evaluation mean | greedy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed, result in zip(seeds, results, strict=True):
        print(
            f"| {seed} | {result['env_steps']:,} | {result['updates']:,} | {result['cpu_seconds']:.1f} "
            f"| {result['evaluation']:.4g}{'' if result['reached'] else ' (not reached)'} | {result['greedy']:.4g} |"
        )
    print(f"decisions {format_spread(result['env_steps'] for result in results)}")


def print_crashes(folder: Path, chance: float, decisions: int) -> None:
    """Train with two players that crash at random. Print crashes, checkpoints, and the players still running."""
    player = make_player(_make_folder(folder, "crash"), "balance_ball", "--fault", "crash", "--chance", str(chance))
    warnings: list[str] = []
    logging.getLogger("algorithm").addHandler(_RecordingHandler(warnings))
    changes = ["base_config.n_envs=2", "base_config.max_env_restarts=1000", f"base_config.max_step={decisions}"]
    lines: list[str] = []
    result = _train(
        player, [*changes, "base_config.save_every=20000", "base_config.keep_checkpoints=100"], lines.append
    )
    crashes = sum("crashed" in warning for warning in warnings)
    print(f"crashes {crashes}, each followed by a start; {lines[-1]}")
    print(f"decisions {result.counters.env_steps:,}, updates {result.counters.updates:,}")
    print(f"players left: {sum(str(player) in command for command in _list_commands())}")


class _RecordingHandler(logging.Handler):
    """A handler that appends the messages of warnings to a list."""

    def __init__(self, lines: list[str]):
        super().__init__(logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _list_commands() -> Iterator[str]:
    """Yield the command line of every process (Linux)."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace").replace("\0", " ")


def _make_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def main() -> None:
    """Print the requested figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "ball", "crashes"))
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds of speed")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds of ball")
    parser.add_argument("--first-seed", type=int, default=1000, help="first seed of ball")
    parser.add_argument("--chance", type=float, default=0.006, help="probability of a crash at each tick")
    parser.add_argument("--decisions", type=int, default=120_000, help="env steps of crashes")
    options = parser.parse_args()
    configure_torch()
    print(describe_setup())
    with TemporaryDirectory() as path:
        folder = Path(path)
        if options.what == "speed":
            print_speeds(folder, options.rounds)
        elif options.what == "ball":
            print_ball(folder, range(options.first_seed, options.first_seed + options.seeds))
        else:
            print_crashes(folder, options.chance, options.decisions)


if __name__ == "__main__":
    main()
