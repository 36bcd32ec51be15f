"""Unity's protocol on a scripted player: speed beside ML-Agents' own client, the ball's goal, a run full of crashes.

Speed is wall time, since player and trainer are processes of their own; both sides in turns.
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
from measure import in_own_processes, machine, spread, train_folder

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.client import api
from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import read_assignments, read_variant, resolve
from algorithm.networks import Blueprint, Conv, Mlp, Vector
from algorithm.runs import run_folder
from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.runs.torch_setup import configure_torch
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.learner import Learner
from algorithm.training.progress import Progress
from tests.unity_player.launcher import make_player

UNITY_ARGS = {
    "base_port": None,
    "agents": None,
    "no_graphics": False,
    "time_scale": 20,
    "quality_level": 1,
    "width": 84,
    "height": 84,
    "target_frame_rate": -1,
    "capture_frame_rate": 60,
    "additional_args": [],
    "log_folder": None,
    "timeout_wait": 30.0,
}
SLOW = 0.02  # seconds that a slow player sleeps in each tick
IMAGES = ("--size", "84", "--agents", "12", "--layout", "hwc")  # which ML-Agents' client of Python 0.28 can read
PORT = 6105


def bare(player: Path, ticks: int) -> float:
    """Ticks per second of ML-Agents' own client with random actions."""
    env = api.UnityEnvironment(str(player), base_port=PORT, no_graphics=False, timeout_wait=30)
    try:
        env.reset()
        return rate(lambda: _random(env), ticks)
    finally:
        env.close()


def _random(env: Any) -> None:
    for name, spec in env.behavior_specs.items():
        waiting, _ = env.get_steps(name)
        if len(waiting):
            env.set_actions(name, spec.action_spec.random_action(len(waiting)))
    env.step()


@contextmanager
def scene(player: Path, copies: int = 1) -> Iterator[UnityAdapter]:
    """The adapter of so many players."""
    adapter = UnityAdapter(EnvConfig(name="", n_envs=copies, section={"build_path": str(player), **UNITY_ARGS}))
    try:
        yield adapter
    finally:
        adapter.close()


def acting(player: Path, ticks: int, copies: int = 1) -> float:
    """Ticks per second of all players together where an agent acts in them and nothing is learned."""
    with scene(player, copies) as adapter:

        def team(name: str, role: Any) -> AgentComponents:
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

        actor = Actor(TrainingComponents(adapter, team), seed=0)
        return copies * rate(actor.collect, ticks)


def raw(player: Path, ticks: int) -> float:
    """Ticks per second of the adapter with actions of zero."""
    with scene(player) as adapter:
        steps = adapter.reset(0)

        def tick() -> None:
            nonlocal steps
            sizes = {role: (len(step.lane), adapter.roles[role].action_spec.size) for role, step in steps.items()}
            steps = adapter.step({role: np.zeros(size, np.float32) for role, size in sizes.items()})

        return rate(tick, ticks)


def rate(tick: Callable[[], Any], ticks: int) -> float:
    """How often per second; the first twentieth is for getting warm."""
    for _ in range(max(ticks // 20, 1)):
        tick()
    begin = time.perf_counter()
    for _ in range(ticks):
        tick()
    return ticks / (time.perf_counter() - begin)


def in_turns(turns: int, ours: Callable[[], float], theirs: Callable[[], float]) -> str:
    """Both rates and their ratio, medians and ranges."""
    pairs = [(theirs(), ours()) for _ in range(turns)]
    own, other = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
    return f"{spread(other)} | {spread(own)} | {spread((b / a for a, b in pairs), 2)}"


class StepRecorder(Callback):
    """A callback that records pairs of seconds and env steps."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []

    def on_progress(self, progress: Progress) -> None:
        self.points.append((time.perf_counter(), progress.counters.env_steps))


def training(player: Path, ticks: int) -> float:
    """Ticks per second of twelve agents while they learn, from the first to the last time that the run is shown."""
    recorder = StepRecorder()
    _run(player, [f"base_config.max_step={12 * ticks}"], callbacks=[recorder])
    learning = [point for point in recorder.points if point[1] > 1.2 * ticks]  # after a tenth of it
    return (learning[-1][1] - learning[0][1]) / (learning[-1][0] - learning[0][0]) / 12


def _run(
    player: Path,
    changes: list[str],
    log: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """A run of the folder unity/3dball without a goal."""
    source = run_folder.find_environment_folder("unity/3dball")
    own = [f'base_config.unity_args.build_path="{player}"', "goal.return=null", *changes]
    layers = [("3dball", read_variant(source / "config.yaml", "default")), ("here", read_assignments(own))]
    with TemporaryDirectory() as place:
        run_folder.RUNS = Path(place)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create("unity/3dball", source, "run", settings.tree)
        result = train(settings, folder, log, callbacks)
        log(f"checkpoints: {', '.join(path.name for path in sorted((folder.path / 'checkpoints').glob('[0-9]*')))}")
    return result


def speed(place: Path, turns: int) -> None:
    """Print a table of ratios."""
    ball = make_player(_folder(place, "ball"), "balance_ball")
    slow = make_player(_folder(place, "slow"), "balance_ball", "--slow", str(SLOW))
    images = make_player(_folder(place, "images"), "grid", *IMAGES)
    print("| what | reference, ticks/s | here, ticks/s | ratio |")
    print("| --- | ---: | ---: | ---: |")
    told = in_turns(turns, lambda: acting(ball, 600), lambda: bare(ball, 600))
    print(f"| acting, beside ML-Agents' own client with random actions | {told} |", flush=True)
    told = in_turns(turns, lambda: raw(images, 150), lambda: bare(images, 150))
    print(f"| 12 raw images of 84x84x3, beside ML-Agents' own client | {told} |", flush=True)
    told = in_turns(turns, lambda: training(slow, 1000), lambda: bare(slow, 300))
    print(f"| learning with a player of 20 ms per tick, beside ML-Agents' own client | {told} |", flush=True)
    told = in_turns(turns, lambda: training(slow, 1000), lambda: acting(slow, 300))
    print(f"| learning with such a player, beside acting alone | {told} |", flush=True)
    told = in_turns(turns, lambda: acting(slow, 300, 4), lambda: acting(slow, 300))
    print(f"| four such players, beside one | {told} |", flush=True)


def ball(place: Path, seeds: range) -> None:
    """Print the decisions of twelve agents until 90% of the best return is confirmed by evaluation episodes."""
    player = make_player(_folder(place, "ball"), "balance_ball")
    changes = (f'base_config.unity_args.build_path="{player}"', "goal.return=18", "base_config.max_step=150000")
    results = in_own_processes(train_folder, [("unity/3dball", seed, changes, 20) for seed in seeds])
    print("| seed | decisions | updates | CPU s of the trainer | evaluation mean | greedy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed, result in zip(seeds, results, strict=True):
        print(
            f"| {seed} | {result['env_steps']:,} | {result['updates']:,} | {result['cpu_seconds']:.1f} "
            f"| {result['evaluation']:.4g}{'' if result['reached'] else ' (not reached)'} | {result['greedy']:.4g} |"
        )
    print(f"decisions {spread(result['env_steps'] for result in results)}")


def crashes(place: Path, chance: float, decisions: int) -> None:
    """Print what a run went through whose two players crash at random, and what was left of it."""
    player = make_player(_folder(place, "crash"), "balance_ball", "--fault", "crash", "--chance", str(chance))
    faults = []
    logging.getLogger("algorithm").addHandler(_Counting(faults))
    changes = ["base_config.n_envs=2", "base_config.max_env_restarts=1000", f"base_config.max_step={decisions}"]
    lines: list[str] = []
    result = _run(player, [*changes, "base_config.save_every=20000", "base_config.keep_checkpoints=100"], lines.append)
    crashed = sum("crashed" in fault for fault in faults)
    print(f"crashes {crashed}, each followed by a start; {lines[-1]}")
    print(f"decisions {result.counters.env_steps:,}, updates {result.counters.updates:,}")
    print(f"players left: {sum(str(player) in command for command in _commands())}")


class _Counting(logging.Handler):
    def __init__(self, lines: list[str]):
        super().__init__(logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _commands() -> Iterator[str]:
    """The command line of every process (Linux)."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace").replace("\0", " ")


def _folder(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


def main() -> None:
    """Print the figures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "ball", "crashes"))
    parser.add_argument("--turns", type=int, default=5, help="of speed")
    parser.add_argument("--seeds", type=int, default=5, help="of the ball")
    parser.add_argument("--first-seed", type=int, default=1000, help="of the ball")
    parser.add_argument("--chance", type=float, default=0.006, help="of a crash at each tick")
    parser.add_argument("--decisions", type=int, default=120_000, help="of the run with crashes")
    options = parser.parse_args()
    configure_torch()
    print(machine())
    with TemporaryDirectory() as folder:
        place = Path(folder)
        if options.what == "speed":
            speed(place, options.turns)
        elif options.what == "ball":
            ball(place, range(options.first_seed, options.first_seed + options.seeds))
        else:
            crashes(place, options.chance, options.decisions)


if __name__ == "__main__":
    main()
