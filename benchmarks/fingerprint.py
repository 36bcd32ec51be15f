"""Fingerprints of training: digests of the state after short runs, which show whether a change alters any number.

Each case trains for a few hundred to 1,300 updates in a fresh process. Its row has digests of

- weights: the flat parameters, and the target and average networks,
- optimizer: the moments of the optimizers,
- statistics: running statistics of observations and returns, and the counters of the learner,
- replay: the stored transitions, and the state of the sampler with its priorities,
- generators: the states of the random generators, so that an additional or missing draw shows,
- metrics: the columns of the logged metrics, among them returns, losses and evaluations. Columns of new metrics are no
  difference.

Digests depend on values only, not on the names of settings, classes, files, parameters, arrays or metrics, nor on the
order or the shapes of arrays. So a renaming leaves the table as it is. Metrics that depend on time are left out
(seconds, speeds, shares of time), since they differ between any two runs.

Floating-point results differ between processors (with AVX-512 or without) and between versions of libraries. On another
machine, store a table of the commit before the change with `--write`, and compare the commit after it with that table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch
from digests import combine, digest_arrays, digest_bytes, find_differences
from measure import describe_setup, run_in_subprocesses, train_folder

from algorithm.runtimes.local import LocalRuntime
from algorithm.training.components import AgentComponents, TrainingComponents

Rows = dict[str, dict[str, Any]]  # by case: env_steps, updates, and digests by kind of state
KINDS = ("weights", "optimizer", "statistics", "replay", "generators", "metrics")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A short training run: a variant of an environment folder, with further settings as `section.key=value`."""

    env: str
    variant: str = "default"
    env_steps: int
    settings: tuple[str, ...] = ()


CASES = {
    "acer-cartpole": Case(env="gym/cartpole", env_steps=8000),
    "acer-pendulum": Case(env="gym/pendulum", env_steps=3000),
    "acer-parking": Case(env="hybrid/parking", env_steps=8000),
    "acer-lights": Case(env="masked/lights", env_steps=5000),
    "acer-hidden-velocity": Case(env="memory/cartpole_hidden_velocity", env_steps=12000),
    "acer-errand": Case(env="visual/errand", env_steps=16000),
    "acer-vtrace": Case(env="gym/cartpole", variant="vtrace", env_steps=8000),
    "acer-prioritized": Case(env="gym/cartpole", variant="prioritized", env_steps=8000),
    "acer-lazy": Case(env="gym/cartpole", variant="lazy", env_steps=8000),
    "acer-state-values": Case(
        env="gym/pendulum",
        env_steps=3000,
        settings=(
            "acer_config.estimator=vtrace",
            "acer_config.critic=state_value",
            "acer_config.std=state_dependent",
            "acer_config.tanh_squash=true",
            "acer_config.entropy_coef=0.01",
            "acer_config.reward_normalization=return_std",
            "acer_config.optimizer=rmsprop",
            "explorer.action_noise=[0.1, 0.4]",
        ),
    ),
    "sac-pendulum": Case(env="gym/pendulum", variant="sac", env_steps=800),
    "sac-cartpole": Case(env="gym/cartpole", variant="sac", env_steps=3000),
    "sac-parking": Case(env="hybrid/parking", variant="sac", env_steps=4000),
    "sac-n-step": Case(
        env="gym/pendulum",
        variant="sac",
        env_steps=600,
        settings=("sac_config.n_step=4", "sac_config.sequence_length=4"),
    ),
    "sac-dqn": Case(
        env="gym/cartpole",
        variant="sac",
        env_steps=3000,
        settings=(
            "sac_config.discrete_dqn_like=true",
            "sac_config.rescale_values=true",
            "sac_config.clip_epsilon=0.5",
        ),
    ),
}
# Settings of all cases. The replay buffer is small, so that its first transitions are overwritten.
COMMON = (
    "base_config.device=cpu",
    "base_config.log_every=500",
    "base_config.save_every=null",
    "replay_config.capacity=4000",
    "goal.return=null",
)


def measure_case(name: str, seed: int) -> dict[str, Any]:
    """Train one case. Return its env steps, its updates, and its digests by kind of state."""
    case = CASES[name]
    states: list[dict[str, list[str]]] = []
    run = LocalRuntime.run

    def run_and_read(self, parts, actor, monitor, divergence) -> None:
        run(self, parts, actor, monitor, divergence)
        states.append(digest_state(parts, monitor.reporter.metrics.table))

    limits = (f"base_config.max_step={case.env_steps}", f"base_config.evaluate_every={case.env_steps // 2}")
    with patch.object(LocalRuntime, "run", run_and_read):
        result = train_folder(case.env, seed, (*COMMON, *limits, *case.settings), episodes=0, variant=case.variant)
    (digests,) = states
    return {"env_steps": result["env_steps"], "updates": result["updates"], "digests": digests}


def digest_state(parts: TrainingComponents, metrics: Path) -> dict[str, list[str]]:
    """Return the digests of all that training has changed, by kind of state."""
    digests: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for components in parts.by_role.values():
        learner = components.learner
        parameters = learner.parameters
        digests["weights"] += digest_arrays(vector.numpy() for vector in (parameters.vector, parameters.target_vector))
        digests["optimizer"] += digest_arrays(step.optimizer.moments.numpy() for step in learner._steps)
        digests["statistics"] += digest_arrays(read_statistics(components))
        digests["replay"] += digest_arrays(components.scheduler.replay.state().values())
        for generator in (components.agent.rng, components.scheduler.rng, components.scheduler.replay.rng):
            digests["generators"].append(digest_bytes(json.dumps(generator.bit_generator.state).encode()))
    digests["generators"] += digest_arrays([torch.get_rng_state().numpy()])
    digests["metrics"] += digest_arrays(read_metrics(metrics))
    return digests


def read_statistics(components: AgentComponents) -> Iterator[np.ndarray]:
    """Yield the running statistics of modules and returns, and the counters of the learner."""
    learner = components.learner
    for where in learner.parameters.statistics_slices.values():
        yield learner.parameters.statistics[where].numpy()
    yield learner.reward_normalizer.running_sums
    yield np.array([learner.updates, learner.skipped_updates, learner.rows_seen, components.scheduler.remainder])


def read_metrics(path: Path) -> Iterator[np.ndarray]:
    """Yield the columns of the logged metrics that do not depend on time; empty cells are NaN."""
    table = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True, deletechars="", dtype=np.float64))
    for name in table.dtype.names:
        if not name.startswith("time/") or name in ("time/episodes", "time/updates"):
            yield table[name]


def describe_machine() -> str:
    """Return the processor, its instructions that torch uses, and the versions of Python and of numeric libraries."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_processor_name()}, {capability}, {describe_setup()}, gymnasium {gymnasium.__version__}"


def _processor_name() -> str:
    """Return the name of the processor where Linux lists it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def write_table(path: Path, rows: Rows) -> None:
    """Write a table as JSON, with a description of this machine. The digests of a kind are one line."""
    joined = {
        name: {**row, "digests": {kind: " ".join(digests) for kind, digests in row["digests"].items()}}
        for name, row in rows.items()
    }
    path.write_text(json.dumps({"machine": describe_machine(), "cases": joined}, indent=1) + "\n", encoding="utf-8")


def read_table(path: Path) -> tuple[str, Rows]:
    """Return the machine and the rows of a table that `write_table` has written."""
    table = json.loads(path.read_text(encoding="utf-8"))
    for row in table["cases"].values():
        row["digests"] = {kind: digests.split() for kind, digests in row["digests"].items()}
    return table["machine"], table["cases"]


def report_differences(stored_on: str, stored: Rows, measured: Rows) -> int:
    """Print how measured rows differ from stored ones. Return the exit status: 1 if any row differs, otherwise 0."""
    differences = find_differences(stored, measured, extensible=("metrics",))
    if not differences:
        print("the same as the stored table, bit for bit")
        return 0
    print(
        "different from the stored table:",
        *differences,
        f"stored on: {stored_on}",
        f"this machine: {describe_machine()}",
        "Floating-point results differ between processors (with AVX-512 or without) and versions of libraries. If the "
        "machines differ, store a table of the commit before the change on this machine (--write) and compare with it.",
        sep="\n",
        file=sys.stderr,
    )
    return 1


def measure(names: Iterable[str], seed: int) -> Rows:
    """Measure each case in a fresh process, print the table row by row, and return the rows."""
    print(describe_machine())
    print(f"| case | env steps | updates | {' | '.join(KINDS)} |")
    print(f"| --- | ---: | ---: | {' | '.join('---' for _ in KINDS)} |")
    rows = {}
    for name in names:
        (row,) = run_in_subprocesses(measure_case, [(name, seed)])
        cells = " | ".join(combine(row["digests"][kind]) for kind in KINDS)
        print(f"| {name} | {row['env_steps']:,} | {row['updates']:,} | {cells} |", flush=True)
        rows[name] = row
    return rows


def main() -> int:
    """Print one line per case; store the table, or compare it with a stored one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=0)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="store the table")
    action.add_argument("--check", type=Path, metavar="FILE", help="compare with a stored table; exit 1 if it differs")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    stored_on, stored = read_table(options.check) if options.check else ("", {})
    rows = measure(options.cases or CASES, options.seed)
    if options.write:
        write_table(options.write, rows)
    if not options.check:
        return 0
    compared = {name: row for name, row in stored.items() if name in options.cases or not options.cases}
    return report_differences(stored_on, compared, rows)


if __name__ == "__main__":
    sys.exit(main())
