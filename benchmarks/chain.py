"""Updates until a chain with one reward at its end is solved, by the sampler of the replay.

The Blind Cliffwalk (Schaul et al. 2016, arXiv 1511.05952, section 3.1): in each of n states one action leads to the
next state, and the other one terminates the episode without a reward; which action continues is random for each state.
The last step has reward 1. The replay contains the steps of uniformly random behavior: every sequence of n actions
once, in random order, so one rewarded step among 2^(n+1) - 2. Nothing is collected afterwards, so all samplers have the
same data. The chain is solved when the most probable actions reach its end at two evaluations in succession.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import describe_setup, format_spread, run_in_subprocesses

from algorithm.config.loader import read_assignments, resolve
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import configure_torch
from algorithm.rollout import Rollout, Step
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.components import AgentComponents

SAMPLERS = ("uniform", "prioritized", "lazy")
EVALUATION_INTERVAL = 10  # updates
MAX_UPDATES = 60_000
# Single steps, as in the paper; all other settings are the defaults.
SETTINGS = (
    "base_config.env_type=PROBE",
    "base_config.env_name=chain",
    "acer_config.rollout_length=1",
    "acer_config.sequence_length=1",
    "acer_config.on_policy_updates=false",
    "acer_config.batch_size=4",
)


def make_experience(right: np.ndarray, rng: np.random.Generator) -> Rollout:
    """Return every sequence of actions once, as one column; the action `right` [states] leads to the next state."""
    states, state, action = len(right), [], []
    for sequence in rng.permutation(np.array(list(product((0, 1), repeat=states)))):
        wrong = np.flatnonzero(sequence != right)
        length = wrong[0] + 1 if len(wrong) else states
        state += range(length)
        action += sequence[:length].tolist()
    state, action = np.array([*state, 0]), np.array(action)
    rows, continues = len(action), action == right[state[:-1]]
    return Rollout(
        obs={"obs": np.eye(states, dtype=np.uint8)[state][:, None]},
        first=(state == 0)[:, None],
        raw_action=action[:, None, None].astype(np.float32),
        reward=(continues & (state[:-1] == states - 1))[:, None].astype(np.float32),
        alive=(continues & (state[:-1] < states - 1))[:, None],
        behavior=np.zeros((rows, 1, 2), np.float32),  # logits
        memory=np.zeros((1, 0), np.float32),
        lane=np.zeros(1, np.int64),
        continues_previous=np.ones(1, bool),
        weight=np.ones(1, np.float32),
        index=np.full(1, -1),
        version=np.zeros(1, np.int64),
    )


def split_rows(rollout: Rollout) -> Iterator[Rollout]:
    """Yield the rows one at a time, as rollouts of length 1."""
    for row in range(len(rollout)):
        yield Rollout(
            obs={name: value[row : row + 2] for name, value in rollout.obs.items()},
            first=rollout.first[row : row + 2],
            **{name: getattr(rollout, name)[row : row + 1] for name in ("raw_action", "reward", "alive", "behavior")},
            **{name: getattr(rollout, name) for name in ("memory", "lane", "weight", "index", "version")},
            continues_previous=np.array([row > 0]),
        )


def is_solved(components: AgentComponents, right: np.ndarray) -> bool:
    """Return whether the most probable actions reach the end of the chain."""
    states, none = len(right), np.zeros(len(right), bool)
    obs = {"obs": np.eye(states, dtype=np.uint8)}
    step = Step(
        lane=np.arange(states),
        obs=obs,
        first=~none,
        is_bootstrap_row=none,
        reward=np.zeros(states, np.float32),
        alive=~none,
    )
    return bool((components.agent.greedy(step, np.zeros((states, 0), np.float32)).raw_action[:, 0] == right).all())


def solve(states: int, sampler: str, seed: int, changes: tuple[str, ...]) -> dict[str, Any]:
    """Train until the chain is solved. Return the number of updates and the CPU seconds."""
    configure_torch()
    assignments = (
        f"replay_config.sampler={sampler}",
        f"base_config.seed={seed}",
        f"replay_config.capacity={2 ** (states + 1)}",
    )
    settings = resolve([("benchmark", read_assignments([*SETTINGS, *changes, *assignments]))])
    role = Role(1, {"obs": ObsSpec((states,), "uint8")}, ActionSpec(branches=(2,)))
    with tempfile.TemporaryDirectory() as path:
        source = Path(path) / "source"
        source.mkdir()
        folder = RunFolder.create(f"{path}/chain", source, "run", settings.tree)
        components = ComponentsBuilder(settings, folder, None, lambda line: None)("agent", role)
    rng = np.random.default_rng(seed)
    right = rng.integers(2, size=states)
    for row in split_rows(make_experience(right, rng)):
        components.scheduler.replay.add(row)
    begin, times_solved = time.process_time(), 0
    while times_solved < 2 and components.learner.updates < MAX_UPDATES:
        for _ in range(EVALUATION_INTERVAL):
            batch = components.scheduler.replay.sample(components.agent.schedule.batch_size)
            report = components.learner.compute_gradients(batch)
            components.learner.apply_gradients()
            components.scheduler.replay.prioritize(batch.index, report.compute_td_errors)
        times_solved = times_solved + 1 if is_solved(components, right) else 0
    return {"updates": components.learner.updates, "seconds": time.process_time() - begin}


def main() -> None:
    """Print a table of medians and ranges over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[10, 12, 14])
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="changes")
    options = parser.parse_args()
    print(describe_setup())
    print("| states | steps stored | sampler | updates | relative to uniform | CPU s | solved |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for states in options.states:
        baseline = None
        for sampler in options.samplers:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            results = run_in_subprocesses(solve, [(states, sampler, seed, tuple(options.changes)) for seed in seeds])
            updates = [result["updates"] for result in results]
            baseline = baseline or float(np.median(updates))
            n_solved = sum(count < MAX_UPDATES for count in updates)
            print(
                f"| {states} | {2 ** (states + 1) - 2:,} | {sampler} | {format_spread(updates)} "
                f"| {np.median(updates) / baseline:.2f} | {format_spread((r['seconds'] for r in results), 1)} "
                f"| {n_solved} of {len(updates)} |",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
