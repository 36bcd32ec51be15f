"""Env steps per wall second while environments in subprocesses step and the agent learns, or decides for another group.

The environments sleep in each step, and a timed agent sleeps in each tick, as if they were robots and a GPU: they need
no processor of this machine. SAC learns on its processor. The two measurements of a comparison alternate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from measure import StepRecorder, compare, describe_setup, train_folder

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.wrappers import EnvGroups
from algorithm.rollout import Decision, Step
from algorithm.training.actor import Actor
from tests.doubles import ParityAgent, make_components

# Settings of environments in forked processes, which start faster than others.
ASYNC = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}}
SLEEP = "overlap:Sleep"
ROLLOUT_LENGTH = 20


class Sleep(gymnasium.Wrapper):
    """A wrapper of an environment whose step takes at least `seconds`."""

    def __init__(self, env: gymnasium.Env, seconds: float):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(self.seconds)
        return self.env.step(action)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The environments of a measurement, and the seconds that a tick of all of them or of one group takes.

    Attributes:
        n_envs: Number of environments.
        n_groups: Number of groups that take turns.
        step: Seconds of a step of the environments.
        act: Seconds of the agent's decisions.
        learn: Seconds of learning in each tick.
        overlaps: Whether the environments step while the agent learns.
    """

    n_envs: int
    n_groups: int = 1
    step: float = 0.005
    act: float = 0.0
    learn: float = 0.0
    overlaps: bool = True

    def __str__(self) -> str:
        groups = f" in {self.n_groups} groups" if self.n_groups > 1 else ""
        times = {"step": self.step, "decisions": self.act, "learning": self.learn}
        text = ", ".join(f"{name} {1000 * seconds:.3g} ms" for name, seconds in times.items() if seconds)
        return f"{self.n_envs} environments{groups}: {text}{'' if self.overlaps else ', no overlap'}"


LOADS = (  # reference, measured
    # Learning and steps overlap.
    (Load(n_envs=4, learn=0.005, overlaps=False), Load(n_envs=4, learn=0.005)),
    # Groups as large as all environments before.
    (Load(n_envs=4, act=0.005), Load(n_envs=8, act=0.005, n_groups=2)),
    # Groups of the same environments: times that do not depend on their number, and times in proportion to it.
    (Load(n_envs=8, act=0.005), Load(n_envs=8, act=0.005, n_groups=2)),
    (Load(n_envs=8, act=0.005), Load(n_envs=8, act=0.0025, n_groups=2)),
    (Load(n_envs=8, act=0.005), Load(n_envs=8, act=0.00125, n_groups=4)),
    (Load(n_envs=8, act=0.005), Load(n_envs=8, step=0.0025, act=0.0025, n_groups=2)),
)
SAC_RUNS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("SAC, 8 environments, no overlap | SAC, 8 environments", {"overlaps": False}, {}),
    ("SAC, 8 environments | SAC, 8 environments in 2 groups", {}, {"n_groups": 2}),
)


class TimedAgent(ParityAgent):
    """An agent whose decisions take the time that `load` contains."""

    def __init__(self, load: Load):
        super().__init__(ROLLOUT_LENGTH)
        self.load = load

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        """Sleep, then decide."""
        time.sleep(self.load.act)
        return super().act(step, memory)


@contextmanager
def suspend_overlap(is_suspended: bool) -> Iterator[None]:
    """Let the environments of all GymAdapters step in `receive`, as if they were in this process."""
    send, receive = GymAdapter.send, GymAdapter.receive

    def keep_actions(self: GymAdapter, actions: Any) -> None:
        self.kept_actions = actions  # type: ignore[attr-defined]

    def send_and_receive(self: GymAdapter) -> dict[str, Step]:
        send(self, self.kept_actions)  # type: ignore[attr-defined]
        return receive(self)

    try:
        if is_suspended:
            GymAdapter.send, GymAdapter.receive = keep_actions, send_and_receive  # type: ignore[method-assign]
        yield
    finally:
        GymAdapter.send, GymAdapter.receive = send, receive  # type: ignore[method-assign]


def measure_load(load: Load, seconds: float) -> float:
    """Return the env steps per wall second of a timed agent, after a second of warm-up."""
    config = EnvConfig(
        name="CartPole-v1",
        n_envs=load.n_envs,
        args=ASYNC,
        wrappers=[(SLEEP, {"seconds": load.step})],
    )
    with suspend_overlap(not load.overlaps), closing(EnvGroups(GymAdapter, config, load.n_groups)) as adapter:
        actor = Actor(make_components(adapter, TimedAgent(load)), seed=0)
        _run_ticks(actor, load, 1.0)
        begin, actor.env_steps = time.perf_counter(), 0
        _run_ticks(actor, load, seconds)
        return actor.env_steps / (time.perf_counter() - begin)


def _run_ticks(actor: Actor, load: Load, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        actor.act()
        time.sleep(load.learn)
        actor.receive()


def measure_sac(env_steps: int, n_groups: int = 1, overlaps: bool = True) -> float:
    """Return the env steps per wall second of SAC in 8 environments of Pendulum-v1, without the first quarter."""
    recorder = StepRecorder()
    changes = [
        "base_config.n_envs=8",
        f"base_config.env_groups={n_groups}",
        f"base_config.env_args={json.dumps(ASYNC)}",
        f"base_config.env_wrappers={json.dumps([{SLEEP: {'seconds': 0.005}}])}",
        f"base_config.max_step={env_steps}",
        "base_config.log_every=400",
        "goal.return=null",
    ]
    with suspend_overlap(not overlaps):
        train_folder("gym/pendulum", 0, changes, episodes=0, variant="sac", callbacks=[recorder])
    points = [point for point in recorder.points if point[1] > env_steps / 4]
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def main() -> None:
    """Print one line per comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--env-steps", type=int, default=6000)
    options = parser.parse_args()
    print(describe_setup())
    print("| reference | measured | reference, env steps/s | measured, env steps/s | ratio |")
    print("| --- | --- | ---: | ---: | ---: |")
    for reference, measured in LOADS:
        cells = compare(
            options.rounds,
            lambda load=measured: measure_load(load, options.seconds),  # type: ignore[misc]
            lambda load=reference: measure_load(load, options.seconds),  # type: ignore[misc]
        )
        print(f"| {reference} | {measured} | {cells} |", flush=True)
    for name, reference_args, args in SAC_RUNS:
        cells = compare(
            options.rounds,
            lambda args=args: measure_sac(options.env_steps, **args),  # type: ignore[misc]
            lambda args=reference_args: measure_sac(options.env_steps, **args),  # type: ignore[misc]
        )
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
