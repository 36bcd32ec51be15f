"""Fingerprints of training: digests of the state after short runs, which show whether a change alters any number.

Each case trains for a few hundred to 1,300 updates in a fresh process. Its row has digests of

- weights: the flat parameters, and the target and average networks,
- optimizer: the moments of the optimizers,
- statistics: running statistics of observations and returns, and the counters of the learner,
- replay: the stored transitions, and the state of the sampler with its priorities,
- generators: the states of the random generators, so that an additional or missing draw shows,
- metrics: the columns of the logged metrics, among them returns, losses and evaluations. Columns of new metrics are no
  difference.

Further cases are commands, whose digests are those of the files that they write: an actor on a cluster, a worker, a
population, a search for settings, and an export, of which the weights and the outputs for fixed inputs count.

Digests depend on values only, not on the names of settings, classes, files, parameters, arrays or metrics, nor on the
order or the shapes of arrays. So a renaming leaves the table as it is. Metrics that depend on time are left out
(seconds, speeds, shares of time), since they differ between any two runs.

Floating-point results differ between processors (with AVX-512 or without) and between versions of libraries. On another
machine, store a table of the commit before the change with `--write`, and compare the commit after it with that table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
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

from algorithm.processes.fleet import LocalFleet
from algorithm.training.components import AgentComponents, TrainingComponents

ROOT = Path(__file__).resolve().parents[1]
Rows = dict[str, dict[str, Any]]  # by case: env_steps, updates, and digests by kind of state
FILE_KINDS = {".pt": "weights", "learner.pt": "optimizer", ".npz": "replay", ".csv": "metrics", ".onnx": "weights"}
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
    "sac-flash": Case(
        env="mujoco/half_cheetah",
        variant="flash_small",
        env_steps=800,
        settings=("sac_config.learning_starts=400", "sac_config.random_steps=400"),
    ),
    "reactor-cartpole": Case(env="gym/cartpole", variant="reactor", env_steps=3000),
    "a2c-gru": Case(env="gym/cartpole", variant="a2c_gru", env_steps=16000),
    "ppo-cartpole": Case(env="gym/cartpole", variant="ppo", env_steps=8000),
}
# Arguments of main.py, one command after the other. Ray needs a network namespace with nothing but loopback.
SHORT = ("--seed", "0", "--device", "cpu", "--set", "goal.return=null", "base_config.log_every=500")
SHORT += ("base_config.max_step=3000",)
COMMANDS = {
    "one-actor": [
        ("gym/cartpole", "-c", "a2c", *SHORT, "cluster_config.actors=1", "cluster_config.rollouts_in_flight=1")
        + ("cluster_config.token_auth=false", "--ray", "local")
    ],
    "one-worker": [("gym/cartpole", *SHORT, "base_config.runtime=WORKERS", "base_config.n_workers=1")],
    "population-of-two": [("gym/cartpole", "--population", "2", *SHORT, "population_config.interval=1000")],
    "tune-trial": [
        ("tune", "gym/cartpole", "--trials", "1", "--set", "goal.return=400", "base_config.max_step=1500")
    ],  # exit status 2
    "export": [("gym/cartpole", *SHORT), ("export", "gym/cartpole")],
}
ALL_CASES = (*CASES, *COMMANDS)
LOOPBACK = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c")
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
    run = LocalFleet.run

    def run_and_read(self, monitor, divergence) -> None:
        run(self, monitor, divergence)
        states.append(digest_state(self.training, monitor.reporter.metrics.table))

    limits = (f"base_config.max_step={case.env_steps}", f"base_config.evaluate_every={case.env_steps // 2}")
    with patch.object(LocalFleet, "run", run_and_read):
        result = train_folder(case.env, seed, (*COMMON, *limits, *case.settings), episodes=0, variant=case.variant)
    (digests,) = states
    return {"env_steps": result["env_steps"], "updates": result["updates"], "digests": digests}


def measure_commands(name: str) -> dict[str, Any]:
    """Run the commands of a case in a temporary folder. Return the digests of the files by kind of state."""
    digests: dict[str, list[str]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for arguments in COMMANDS[name]:
            command = [sys.executable, str(ROOT / "main.py"), *arguments, "-n", "run"]
            if "--ray" in arguments:
                command = [*LOOPBACK, 'ip link set lo up && exec "$@"', "bash", *command]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != (2 if "tune" in arguments else 0):  # 2: no trial reaches the goal
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
        for path in sorted(Path(folder).rglob("*")):
            kind = FILE_KINDS.get(path.suffix if path.name != "learner.pt" else path.name)
            if kind:
                digests[kind] += digest_arrays(read_arrays(path))
    return {"env_steps": 0, "updates": 0, "digests": digests}


def read_arrays(path: Path) -> Iterator[np.ndarray]:
    """Yield the arrays in a file of a run; of an ONNX file its weights, and its outputs for fixed inputs."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            yield from (arrays[name] for name in arrays.files if arrays[name].dtype.kind in "biuf")
    elif path.suffix == ".csv":
        yield from read_metrics(path)
    elif path.suffix == ".pt":
        yield from read_tensors(torch.load(path, weights_only=True))
    else:
        import onnx
        import onnxruntime

        for weight in onnx.load(path).graph.initializer:
            yield onnx.numpy_helper.to_array(weight)
        session, rng = onnxruntime.InferenceSession(path), np.random.default_rng(0)
        inputs = {
            each.name: rng.random([size if isinstance(size, int) else 3 for size in each.shape], dtype=np.float32)
            for each in session.get_inputs()
        }
        deterministic = [each.name for each in session.get_outputs() if not each.name.startswith("discrete_actions")]
        yield from session.run(deterministic, inputs)


def read_tensors(content: Any) -> Iterator[np.ndarray]:
    """Yield the tensors of a checkpoint's file, which contains mappings and lists."""
    if isinstance(content, torch.Tensor):
        yield content.numpy()
    elif isinstance(content, (dict, list, tuple)):
        for each in content.values() if isinstance(content, dict) else content:
            yield from read_tensors(each)


def digest_state(parts: TrainingComponents, metrics: Path) -> dict[str, list[str]]:
    """Return the digests of all that training has changed, by kind of state."""
    digests: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for components in parts.by_role.values():
        learner = components.learner
        parameters = learner.parameters
        digests["weights"] += digest_arrays(vector.numpy() for vector in (parameters.vector, parameters.target_vector))
        digests["optimizer"] += digest_arrays(optimizer.moments.numpy() for optimizer in learner.optimizers)
        digests["statistics"] += digest_arrays(read_statistics(components))
        generators = [components.agent.rng, components.scheduler.rng]
        if replay := components.scheduler.replay:
            digests["replay"] += digest_arrays(replay.state().values())
            generators.append(replay.rng)
        for generator in generators:
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
    remainder = components.scheduler.state().get("remainder", 0.0)
    yield np.array([learner.updates, learner.skipped_updates, learner.rows_seen, remainder])


def read_metrics(path: Path) -> Iterator[np.ndarray]:
    """Yield the columns of the logged metrics that do not depend on time; empty cells are NaN."""
    table = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True, deletechars="", dtype=np.float64))
    for name in table.dtype.names:
        if not name.startswith(("time/", "cluster/")) or name in ("time/episodes", "time/updates"):
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
        (row,) = run_in_subprocesses(measure_case, [(name, seed)]) if name in CASES else [measure_commands(name)]
        cells = " | ".join(combine(row["digests"][kind]) for kind in KINDS)
        print(f"| {name} | {row['env_steps']:,} | {row['updates']:,} | {cells} |", flush=True)
        rows[name] = row
    return rows


def main() -> int:
    """Print one line per case; store the table, or compare it with a stored one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(ALL_CASES)}")
    parser.add_argument("--seed", type=int, default=0)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="store the table")
    action.add_argument("--check", type=Path, metavar="FILE", help="compare with a stored table; exit 1 if it differs")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(ALL_CASES):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    stored_on, stored = read_table(options.check) if options.check else ("", {})
    rows = measure(options.cases or ALL_CASES, options.seed)
    if options.write:
        write_table(options.write, rows)
    if not options.check:
        return 0
    compared = {name: row for name, row in stored.items() if name in options.cases or not options.cases}
    return report_differences(stored_on, compared, rows)


if __name__ == "__main__":
    sys.exit(main())
