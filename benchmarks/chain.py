"""Updates until a chain with one reward at its far end is solved, by how windows are drawn from the same experience.

The Blind Cliffwalk (Schaul et al. 2016, arXiv 1511.05952, section 3.1): in each of n states one action leads on and the
other ends the episode with nothing; which one is drawn for each state. The last step on is worth 1. The replay holds
what uniformly random behavior gives: every sequence of n actions once, in random order, so one rewarded row among
2^(n+1) - 2, and nothing is collected afterwards. So exploration is the same for all, and only what is drawn differs.
Solved: the most probable actions lead to the end, at two looks in a row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import in_own_processes, machine, spread

from algorithm.config.loader import read_assignments, resolve
from algorithm.rollout import Rollout, Step
from algorithm.runs.components_builder import ComponentsBuilder
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.torch_setup import configure_torch
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.components import AgentComponents

SAMPLERS = ("uniform", "prioritized", "lazy")
LOOK = 10  # updates between two looks at the policy
LIMIT = 60_000  # updates
# Single rows, as in the paper; everything else is the default.
SETTINGS = (
    "base_config.env_type=PROBE",
    "base_config.env_name=chain",
    "acer_config.rollout_length=1",
    "acer_config.sequence_length=1",
    "acer_config.on_policy_updates=false",
    "acer_config.batch_size=4",
)


def experience(right: np.ndarray, rng: np.random.Generator) -> Rollout:
    """Every sequence of actions once, as one column; the action `right` [states] leads on."""
    states, state, action = len(right), [], []
    for sequence in rng.permutation(np.array(list(product((0, 1), repeat=states)))):
        wrong = np.flatnonzero(sequence != right)
        length = wrong[0] + 1 if len(wrong) else states
        state += range(length)
        action += sequence[:length].tolist()
    state, action = np.array([*state, 0]), np.array(action)
    rows, onward = len(action), action == right[state[:-1]]
    return Rollout(
        obs={"obs": np.eye(states, dtype=np.uint8)[state][:, None]},
        first=(state == 0)[:, None],
        raw_action=action[:, None, None].astype(np.float32),
        reward=(onward & (state[:-1] == states - 1))[:, None].astype(np.float32),
        alive=(onward & (state[:-1] < states - 1))[:, None],
        behavior=np.zeros((rows, 1, 2), np.float32),  # logits
        memory=np.zeros((1, 0), np.float32),
        lane=np.zeros(1, np.int64),
        continues_previous=np.ones(1, bool),
        weight=np.ones(1, np.float32),
        index=np.full(1, -1),
        version=np.zeros(1, np.int64),
    )


def columns(rollout: Rollout):
    """The same rows, one at a time, as if they were collected so."""
    for row in range(len(rollout)):
        yield Rollout(
            obs={name: value[row : row + 2] for name, value in rollout.obs.items()},
            first=rollout.first[row : row + 2],
            **{name: getattr(rollout, name)[row : row + 1] for name in ("raw_action", "reward", "alive", "behavior")},
            **{name: getattr(rollout, name) for name in ("memory", "lane", "weight", "index", "version")},
            continues_previous=np.array([row > 0]),
        )


def solved(team: AgentComponents, right: np.ndarray) -> bool:
    """Whether the most probable actions lead to the end."""
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
    return bool((team.agent.greedy(step, np.zeros((states, 0), np.float32)).raw_action[:, 0] == right).all())


def solve(states: int, sampler: str, seed: int, changes: tuple[str, ...]) -> dict[str, Any]:
    """Learn from the same experience until it is solved; updates and CPU seconds it took."""
    configure_torch()
    own = (
        f"replay_config.sampler={sampler}",
        f"base_config.seed={seed}",
        f"replay_config.capacity={2 ** (states + 1)}",
    )
    settings = resolve([("benchmark", read_assignments([*SETTINGS, *changes, *own]))])
    role = Role(1, {"obs": ObsSpec((states,), "uint8")}, ActionSpec(branches=(2,)))
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        source.mkdir()
        folder = RunFolder.create(f"{place}/chain", source, "run", settings.tree)
        team = ComponentsBuilder(settings, folder, None, lambda line: None)("agent", role)
    rng = np.random.default_rng(seed)
    right = rng.integers(2, size=states)
    for column in columns(experience(right, rng)):
        team.scheduler.replay.add(column)
    begin, seen = time.process_time(), 0
    while seen < 2 and team.learner.updates < LIMIT:
        for _ in range(LOOK):
            batch = team.scheduler.replay.sample(team.agent.schedule.batch_size)
            report = team.learner.compute_gradients(batch)
            team.learner.apply_gradients()
            team.scheduler.replay.prioritize(batch.index, report.compute_td_errors)
        seen = seen + 1 if solved(team, right) else 0
    return {"updates": team.learner.updates, "seconds": time.process_time() - begin}


def main() -> None:
    """Print a table: medians and ranges over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[10, 12, 14])
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="changes")
    options = parser.parse_args()
    print(machine())
    print("| states | rows | sampler | updates | of uniform | CPU s | solved |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for states in options.states:
        base = None
        for sampler in options.samplers:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            results = in_own_processes(solve, [(states, sampler, seed, tuple(options.changes)) for seed in seeds])
            updates = [result["updates"] for result in results]
            base = base or float(np.median(updates))
            done = sum(each < LIMIT for each in updates)
            print(
                f"| {states} | {2 ** (states + 1) - 2:,} | {sampler} | {spread(updates)} "
                f"| {np.median(updates) / base:.2f} | {spread((r['seconds'] for r in results), 1)} "
                f"| {done} of {len(updates)} |",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
