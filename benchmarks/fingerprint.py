"""Fingerprints of training: digests of the state after short runs, which show whether a change alters any number.

Each case trains for some hundred to 1,300 updates (one with images: fewer) in a process of its own. Its row has digests
of

- weights: the flat parameters, and the target and average networks,
- optimizer: the moments of the optimizers,
- statistics: running statistics of observations and returns, and the counters of the learner,
- replay: the stored transitions, and the state of the sampler with its priorities,
- generators: the states of the random generators, so that an additional or missing draw shows,
- metrics: the columns of the logged metrics, among them returns, losses and evaluations.

Digests depend on values alone: not on the names of settings, classes, files, parameters, arrays or metrics, nor on the
order or the shapes of arrays. So a renaming leaves the table as it is. Metrics that depend on time are left out
(seconds, speeds, shares of time), since they differ between any two runs.

Floating-point results differ between processors (with AVX-512 or without) and between versions of libraries. On another
machine, store a table of the commit before the change with `--write`, and compare the commit after it with that table.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch
from digests import combine, digest_arrays, digest_bytes, find_differences
from measure import in_own_processes, train_folder

from algorithm.loop.parts import Parts, Team
from algorithm.runtimes.local import LocalRuntime

KINDS = ("weights", "optimizer", "statistics", "replay", "generators", "metrics")
# Folder, variant, env steps, and further settings.
CASES: dict[str, tuple[str, str, int, list[str]]] = {
    "acer-cartpole": ("gym/cartpole", "default", 8000, []),
    "acer-pendulum": ("gym/pendulum", "default", 3000, []),
    "acer-parking": ("hybrid/parking", "default", 8000, []),
    "acer-lights": ("masked/lights", "default", 5000, []),
    "acer-hidden-velocity": ("memory/cartpole_hidden_velocity", "default", 8000, []),
    "acer-errand": ("visual/errand", "default", 8000, []),
    "acer-vtrace": ("gym/cartpole", "vtrace", 8000, []),
    "acer-prioritized": ("gym/cartpole", "prioritized", 8000, []),
    "acer-lazy": ("gym/cartpole", "lazy", 8000, []),
    "acer-state-values": (
        "gym/pendulum",
        "default",
        3000,
        [
            "acer_config.estimator=vtrace",
            "acer_config.critic=v",
            "acer_config.std=state",
            "acer_config.squash=true",
            "acer_config.entropy=0.01",
            "acer_config.normalize_returns=true",
            "acer_config.optimizer=rmsprop",
            "explorer.action_noise=[0.1, 0.4]",
        ],
    ),
    "sac-pendulum": ("gym/pendulum", "sac", 800, []),
    "sac-cartpole": ("gym/cartpole", "sac", 3000, []),
    "sac-parking": ("hybrid/parking", "sac", 4000, []),
    "sac-n-step": ("gym/pendulum", "sac", 600, ["sac_config.n_step=4", "sac_config.trace_length=4"]),
    "sac-dqn": (
        "gym/cartpole",
        "sac",
        3000,
        ["sac_config.discrete_dqn_like=true", "sac_config.rescale_values=true", "sac_config.clip_epsilon=0.5"],
    ),
}
# Of all cases. The replay buffer is small, so that its first transitions are overwritten.
COMMON = [
    "base_config.device=cpu",
    "base_config.log_every=500",
    "base_config.save_every=null",
    "replay_config.capacity=4000",
    "goal.return=null",
]


def measure_case(case: str, seed: int) -> dict[str, Any]:
    """Train one case. Return its env steps, its updates, and its digests by kind of state."""
    env, variant, env_steps, assignments = CASES[case]
    states: list[dict[str, list[str]]] = []
    run = LocalRuntime.run

    def run_and_read(self, parts, actor, monitor, divergence) -> None:
        run(self, parts, actor, monitor, divergence)
        states.append(digest_state(parts, monitor.reporter.metrics.table))

    limits = [f"base_config.max_step={env_steps}", f"base_config.evaluate_every={env_steps // 2}"]
    with patch.object(LocalRuntime, "run", run_and_read):
        result = train_folder(env, seed, [*COMMON, *limits, *assignments], episodes=0, variant=variant)
    (digests,) = states
    return {"env_steps": result["env_steps"], "updates": result["updates"], "digests": digests}


def digest_state(parts: Parts, metrics: Path) -> dict[str, list[str]]:
    """Return the digests of all that training has changed, by kind of state."""
    digests: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for team in parts.teams.values():
        learner = team.learner
        parameters = learner.parameters
        digests["weights"] += digest_arrays(vector.numpy() for vector in (parameters.vector, parameters.copies))
        digests["optimizer"] += digest_arrays(step.optimizer.moments.numpy() for step in learner._steps)
        digests["statistics"] += digest_arrays(read_statistics(team))
        digests["replay"] += digest_arrays(team.feed.replay.state().values())
        for generator in (team.agent.rng, team.feed.rng, team.feed.replay.rng):
            digests["generators"].append(digest_bytes(json.dumps(generator.bit_generator.state).encode()))
    digests["generators"] += digest_arrays([torch.get_rng_state().numpy()])
    digests["metrics"] += digest_arrays(read_metrics(metrics))
    return digests


def read_statistics(team: Team) -> Iterator[np.ndarray]:
    """Yield the running statistics of modules and returns, the noise of layers, and the counters of the learner."""
    learner = team.learner
    for place in learner.parameters.running.values():
        yield learner.parameters.statistics[place].numpy()
    yield learner.returns.running
    yield learner.noise.numbers.numpy()
    yield np.array([learner.updates, learner.skipped, learner.seen, team.feed.owed])


def read_metrics(path: Path) -> Iterator[np.ndarray]:
    """Yield the columns of the logged metrics that do not depend on time; empty cells are NaN."""
    table = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True, deletechars="", dtype=np.float64))
    for name in table.dtype.names:
        if not name.startswith("time/") or name in ("time/episodes", "time/updates"):
            yield table[name]


def describe_machine() -> str:
    """Return the processor, its instructions that torch uses, and the versions of libraries that calculate."""
    return ", ".join(
        (
            _processor_name(),
            torch.backends.cpu.get_cpu_capability(),
            f"Python {platform.python_version()}",
            *(f"{library.__name__} {library.__version__}" for library in (torch, np, gymnasium)),
        )
    )


def _processor_name() -> str:
    """Return the name of the processor, or of its architecture where Linux does not list it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_table(path: Path, cases: dict[str, dict[str, Any]]) -> None:
    """Write a table as JSON, with a description of this machine. The digests of a kind are one line."""
    joined = {
        case: {**row, "digests": {kind: " ".join(digests) for kind, digests in row["digests"].items()}}
        for case, row in cases.items()
    }
    path.write_text(json.dumps({"machine": describe_machine(), "cases": joined}, indent=1) + "\n", encoding="utf-8")


def read_table(path: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the machine and the cases of a table that `write_table` has written."""
    table = json.loads(path.read_text(encoding="utf-8"))
    for row in table["cases"].values():
        row["digests"] = {kind: digests.split() for kind, digests in row["digests"].items()}
    return table["machine"], table["cases"]


def check_table(path: Path, measured: dict[str, dict[str, Any]], cases: list[str]) -> int:
    """Print how measured cases differ from those of a stored table: from `cases`, or from all if it is empty.

    Return the exit status: 0 if they are the same, otherwise 1.
    """
    machine, stored = read_table(path)
    differences = find_differences({case: stored[case] for case in cases or stored if case in stored}, measured)
    if not differences:
        print(f"the same as {path}, bit for bit")
        return 0
    print(
        f"different from {path}:",
        *differences,
        f"machine of the stored table: {machine}",
        f"this machine: {describe_machine()}",
        "Floating-point results differ between processors (with AVX-512 or without) and versions of libraries. If the "
        "machines differ, store a table of the commit before the change here (--write) and compare with it.",
        sep="\n",
        file=sys.stderr,
    )
    return 1


def main() -> int:
    """Print one line per case; store or compare the table on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default all: {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=0)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="store the table")
    action.add_argument("--check", type=Path, metavar="FILE", help="compare with a stored table; exit 1 if it differs")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    print(describe_machine())
    print(f"| case | env steps | updates | {' | '.join(KINDS)} |")
    print(f"| --- | ---: | ---: | {' | '.join('---' for _ in KINDS)} |")
    measured = {}
    for case in options.cases or CASES:
        (measured[case],) = in_own_processes(measure_case, [(case, options.seed)])
        row, digests = measured[case], measured[case]["digests"]
        cells = " | ".join(combine(digests[kind]) for kind in KINDS)
        print(f"| {case} | {row['env_steps']:,} | {row['updates']:,} | {cells} |", flush=True)
    if options.write:
        write_table(options.write, measured)
    return check_table(options.check, measured, options.cases) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
