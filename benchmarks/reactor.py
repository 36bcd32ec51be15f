"""Reactor: CartPole with each beta, MinAtar with ACER and A2C, ablations, and the cost of distributional targets."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

from algorithm.agents.reactor import CategoricalCritic, Reactor
from algorithm.agents.settings import ReactorSettings
from algorithm.config.yaml_layers import load_defaults
from algorithm.networks import Blueprint, Conv, FrameStack, Mlp, NatureCnn
from algorithm.parts.torch_setup import configure_torch
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

BETAS = {
    "inverse": (),
    "truncated": ("reactor_config.loo_beta=truncated", "reactor_config.importance_clip=5"),
    "one": ("reactor_config.loo_beta=one",),
}
GAMES = ("breakout", "space_invaders")
# Variant of the folder and changed settings of each row of the table; the first rows are complete agents.
AGENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Reactor": ("reactor", ()),
    "ACER": ("default", ()),
    "A2C": ("a2c", ()),
    "without prioritization": ("reactor", ("replay_config.sampler=uniform",)),
    "truncated importance sampling": ("reactor", ("reactor_config.policy_gradient=truncated_importance",)),
    "scalar critic": ("reactor_scalar", ()),
}
RESAMPLES = 10_000  # of the bootstrap
ROWS, BATCH, ACTIONS = 32, 8, 18  # of the measured update


def compare_betas(options: argparse.Namespace) -> None:
    """Print the env steps until the goal of CartPole for each beta, and the return at the end."""
    print("| beta | reached | env steps | return of the last evaluation |\n| --- | ---: | ---: | ---: |")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for beta, changes in BETAS.items():
        runs = run_in_subprocesses(train_folder, [("gym/cartpole", seed, changes, 0, "reactor") for seed in seeds])
        reached = [run["env_steps"] for run in runs if run["reached"]]
        print(
            f"| {beta} | {len(reached)} of {len(runs)} | {format_spread(run['env_steps'] for run in runs)} "
            f"| {format_spread(run['evaluation'] for run in runs)} |",
            flush=True,
        )


def compare_minatar(options: argparse.Namespace) -> None:
    """Make the runs that have no file in the folder, and print a table of all."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for game in options.games:
        for name in options.agents:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                path = options.folder / f"{game}.{name.replace(' ', '_')}.{options.frames}.{seed}.json"
                if path.exists():
                    continue
                variant, changes = AGENTS[name]
                changes = (*changes, f"base_config.max_step={options.frames}", "goal=null")
                (run,) = run_in_subprocesses(
                    train_folder, [(f"minatar/{game}", seed, changes, options.episodes, variant)]
                )
                path.write_text(json.dumps(run), encoding="utf-8")
                print(f"{game} {name} seed {seed}: {run['greedy']:.2f}, {run['cpu_seconds']:,.0f} CPU s", flush=True)
    print_minatar(options)


def print_minatar(options: argparse.Namespace) -> None:
    """Print the returns of all runs, their means with bootstrap intervals, and the IQM over the games."""
    print(f"\nMean greedy return of {options.episodes} episodes after {options.frames:,} frames, 95% intervals.\n")
    print(f"| agent | {' | '.join(options.games)} | IQM, in units of ACER's mean | frames per CPU s |")
    print("| --- |" + " ---: |" * (len(options.games) + 2))
    results = {name: {game: read_runs(options, game, name) for game in options.games} for name in AGENTS}
    for name, runs_by_game in results.items():
        if not any(runs_by_game.values()):
            continue
        cells, normalized = [], []
        for game, runs in runs_by_game.items():
            returns = [run["greedy"] for run in runs]
            cells.append(format_interval(returns, np.mean) if returns else "")
            if returns and results["ACER"][game]:
                normalized.append(np.array(returns) / np.mean([run["greedy"] for run in results["ACER"][game]]))
        cells.append(format_interval(np.concatenate(normalized), compute_iqm) if normalized else "")
        rates = [run["env_steps"] / run["cpu_seconds"] for runs in runs_by_game.values() for run in runs]
        print(f"| {name} | {' | '.join(cells)} | {np.median(rates):,.0f} |")


def read_runs(options: argparse.Namespace, game: str, name: str) -> list[dict[str, Any]]:
    """Return the figures of the runs of an agent in a game that have ended."""
    paths = sorted(options.folder.glob(f"{game}.{name.replace(' ', '_')}.{options.frames}.*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def compute_iqm(values: np.ndarray, axis: int | None = None) -> Any:
    """Return the interquartile mean: the mean of the values between the quartiles (Agarwal et al. 2021)."""
    ordered = np.sort(values, axis)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis)


def format_interval(values: Sequence[float] | np.ndarray, statistic: Callable[..., Any]) -> str:
    """Return a statistic of the runs, with its interval of 95% by the percentiles of a bootstrap over the runs."""
    values = np.asarray(values)
    samples = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(statistic(samples, axis=-1), [2.5, 97.5])
    return f"{statistic(values):.2f} [{low:.2f} - {high:.2f}]"


def measure_cost(options: argparse.Namespace) -> None:
    """Print the share of the distributional target in the seconds of an update."""
    configure_torch()
    networks = {
        "atari/pong": ((1, 84, 84), Blueprint({"*": FrameStack(4, NatureCnn(512))}, policy=Mlp(128), critic=Mlp(128))),
        "minatar/breakout": (
            (4, 10, 10),
            Blueprint({"*": Conv((16, 3, 1), units=128)}, policy=Mlp(128), critic=Mlp(128)),
        ),
    }
    print(f"K {ROWS}, batch {BATCH}, {ACTIONS} actions, 51 atoms.\n")
    print("| network | form | update, ms | target, ms | share |\n| --- | --- | ---: | ---: | ---: |")
    for name, (shape, blueprint) in networks.items():
        for form in ("direct", "recursive"):
            update, target = time_update(shape, blueprint, form, options.rounds)
            print(f"| {name} | {form} | {update * 1e3:.1f} | {target * 1e3:.2f} | {target / update:.0%} |", flush=True)


def time_update(shape: tuple[int, ...], blueprint: Blueprint, form: str, rounds: int) -> tuple[float, float]:
    """Return the median seconds of an update and of the targets in it."""
    role = Role(1, {"obs": ObsSpec(shape, "uint8", high=255.0)}, ActionSpec(branches=(ACTIONS,)))
    settings = ReactorSettings(**{**load_defaults()["reactor_config"], "distributional": form, "batch_size": BATCH})
    agent = Reactor(settings, blueprint, role, np.random.default_rng(0))
    learner, batch = Learner(agent, role, {}, None), make_batch(shape, agent.schedule.burn_in)
    assert isinstance(agent.critic, CategoricalCritic)
    updates, targets = [], []
    estimate = agent.critic.estimate
    agent.critic.estimate = partial(call_timed, estimate, targets)
    for _ in range(rounds):
        begin = time.perf_counter()
        learner.compute_gradients(batch)
        learner.apply_gradients()
        updates.append(time.perf_counter() - begin)
    return float(np.median(updates)), float(np.median(targets))


def call_timed(function: Callable[..., Any], seconds: list[float], *arguments: Any) -> Any:
    """Call a function and append its seconds."""
    begin = time.perf_counter()
    result = function(*arguments)
    seconds.append(time.perf_counter() - begin)
    return result


def make_batch(shape: tuple[int, ...], burn_in: int) -> Rollout:
    """Return a batch of random sequences."""
    rng, rows = np.random.default_rng(0), ROWS + burn_in
    return Rollout(
        obs={"obs": rng.integers(256, size=(rows + 1, BATCH, *shape), dtype=np.uint8)},
        first=np.zeros((rows + 1, BATCH), bool),
        raw_action=rng.integers(ACTIONS, size=(rows, BATCH, 1)).astype(np.float32),
        reward=rng.standard_normal((rows, BATCH)).astype(np.float32),
        alive=np.ones((rows, BATCH), bool),
        behavior=np.zeros((rows, BATCH, ACTIONS), np.float32),
        memory=np.zeros((BATCH, 0), np.float32),
        lane=np.arange(BATCH),
        continues_previous=np.zeros(BATCH, bool),
        weight=np.ones(BATCH, np.float32),
        index=np.arange(BATCH),
        version=np.zeros(BATCH, np.int64),
        burn_in=burn_in,
    )


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=9400)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("cartpole", help=compare_betas.__doc__).set_defaults(run=compare_betas)
    minatar = commands.add_parser("minatar", help=compare_minatar.__doc__)
    minatar.add_argument("folder", type=Path, help="folder of the results")
    minatar.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
    minatar.add_argument("--agents", nargs="*", default=list(AGENTS)[:3], choices=list(AGENTS))
    minatar.add_argument("--frames", type=int, default=1_000_000)
    minatar.add_argument("--episodes", type=int, default=100)
    minatar.set_defaults(run=compare_minatar)
    cost = commands.add_parser("cost", help=measure_cost.__doc__)
    cost.add_argument("--rounds", type=int, default=50)
    cost.set_defaults(run=measure_cost)
    options = parser.parse_args()
    print(describe_setup())
    options.run(options)


if __name__ == "__main__":
    main()
