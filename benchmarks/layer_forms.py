"""Compare the forms in which layers are computed, by the CPU time of a whole update of several algorithms.

- stock: torch's linear layers, with an operation of autograd for each layer, bias and ReLU.
- norms: stock, but layers with batch norms are one operation for autograd, with a backward pass by hand.
- products: stock, but large products by `networks.fast_products`, which orders their factors and may use oneDNN.
- fused: both.
- manual: in addition gradients by hand, where an algorithm has them (SAC).

The learners of all forms are in one process, and take turns in blocks of updates on the same batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from unittest.mock import patch

import numpy as np
import torch
from measure import describe_setup, run_in_subprocesses

from algorithm.agents.agent import Agent
from algorithm.config.loader import resolve
from algorithm.config.registry import find_class
from algorithm.config.yaml_layers import read_variant
from algorithm.networks import Blueprint
from algorithm.parts.env_folder import find_folder
from algorithm.parts.torch_setup import configure_torch
from algorithm.parts.user_code import load_blueprint
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

FORMS = ("stock", "norms", "products", "fused", "manual")
NETWORKS = "algorithm.networks"
STOCK_PRODUCTS = {
    f"{NETWORKS}.fast_products.{name}": inf
    for name in ("MIN_MULTIPLICATIONS", "MIN_VALUES", "MIN_ORDERED_MULTIPLICATIONS")
}
SEPARATE_NORMS = {f"{NETWORKS}.layers.can_fuse": lambda x, parameters: False}
PATCHES = {
    "stock": STOCK_PRODUCTS | SEPARATE_NORMS,
    "norms": STOCK_PRODUCTS,
    "products": SEPARATE_NORMS,
    "fused": {},
    "manual": {},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """An update: a variant of an environment folder, the spaces of its role, and the rows [T, B] of a batch."""

    env: str
    variant: str = "default"
    obs: int
    actions: ActionSpec
    rows: tuple[int, int]


HALF_CHEETAH = ActionSpec(6)
CASES = {
    "ACER CartPole": Case(env="gym/cartpole", obs=4, actions=ActionSpec(branches=(2,)), rows=(50, 8)),
    "ACER LunarLander": Case(env="gym/lunar_lander", obs=8, actions=ActionSpec(branches=(4,)), rows=(50, 8)),
    "PPO CartPole": Case(env="gym/cartpole", variant="ppo", obs=4, actions=ActionSpec(branches=(2,)), rows=(32, 8)),
    "PPO HalfCheetah": Case(env="mujoco/half_cheetah", variant="ppo", obs=17, actions=HALF_CHEETAH, rows=(32, 4)),
    "SAC 2 x 256": Case(env="mujoco/half_cheetah", variant="sac_2018", obs=17, actions=HALF_CHEETAH, rows=(1, 256)),
    "crossq": Case(env="mujoco/half_cheetah", variant="crossq", obs=17, actions=HALF_CHEETAH, rows=(1, 256)),
    "flash_small": Case(env="mujoco/half_cheetah", variant="flash_small", obs=17, actions=HALF_CHEETAH, rows=(1, 256)),
}


@contextmanager
def use_form(form: str) -> Iterator[None]:
    """Compute all layers in one form within the block."""
    with ExitStack() as stack:
        for target, value in PATCHES[form].items():
            stack.enter_context(patch(target, value))
        yield


def make_update(case: Case, form: str) -> Callable[[], None]:
    """Return a function that makes one update of an algorithm with the next of some random batches."""
    folder = find_folder(case.env)
    assert folder is not None
    settings = resolve([("config.yaml", read_variant(folder / "config.yaml", case.variant))])
    blueprint = load_blueprint(folder, settings.base.nn, settings.nn)
    assert isinstance(blueprint, Blueprint)
    role = Role(case.rows[1], {"obs": ObsSpec((case.obs,))}, case.actions)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    agent = find_class("algorithm", settings.base.algorithm)(settings.agent, blueprint, role, rng)
    with nullcontext() if form == "manual" else patch("algorithm.training.learner.use_manual_passes"):
        learner = Learner(agent, role, {}, None)
    batches = [make_batch(agent, case, rng) for _ in range(4)]
    if agent.schedule.epochs:
        batches = [learner.prepare(batch) for batch in batches]

    def update() -> None:
        learner.compute_gradients(batches[learner.updates % len(batches)])
        learner.apply_gradients()

    return update


def make_batch(agent: Agent, case: Case, rng: np.random.Generator) -> Rollout:
    """Return a random batch in which no episode ends."""
    (length, columns), spec = case.rows, case.actions
    rows, chosen = case.rows, [rng.integers(n, size=(*case.rows, 1)) for n in spec.branches]
    return Rollout(
        obs={"obs": rng.normal(size=(length + 1, columns, case.obs)).astype(np.float32)},
        first=np.zeros((length + 1, columns), bool),
        raw_action=np.concatenate([rng.normal(size=(*rows, spec.continuous)), *chosen], -1).astype(np.float32),
        reward=rng.normal(size=rows).astype(np.float32),
        alive=np.ones(rows, bool),
        behavior=np.zeros((*rows, agent.family.statistics_size), np.float32),
        memory=np.zeros((columns, agent.state_size), np.float32),
        lane=np.arange(columns),
        continues_previous=np.ones(columns, bool),
        weight=np.ones(columns, np.float32),
        index=np.full(columns, -1),
        version=np.zeros(columns, np.int64),
    )


def measure_case(name: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the CPU milliseconds of an update in each form, by round."""
    configure_torch()
    updates: Mapping[str, Callable[[], None]] = {form: make_update(CASES[name], form) for form in FORMS}
    results: dict[str, list[float]] = {form: [] for form in FORMS}
    for number in range(rounds + 1):  # the first round warms up
        for form, update in updates.items():
            with use_form(form):
                milliseconds = _measure_milliseconds(update, seconds)
            if number:
                results[form].append(milliseconds)
    return results


def _measure_milliseconds(update: Callable[[], None], seconds: float) -> float:
    count, begin = 0, time.process_time()
    while time.process_time() - begin < seconds:
        for _ in range(4):
            update()
        count += 4
    return (time.process_time() - begin) / count * 1e3


def main() -> None:
    """Print the time of an update of each algorithm in each form, and the median ratio to stock torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of a form in a round")
    options = parser.parse_args()
    print(
        f"{describe_setup()}, {torch.backends.cpu.get_cpu_capability()}; CPU ms of an update: median (ratio to stock)"
    )
    print(f"| update | {' | '.join(FORMS)} |", "| --- |" + " ---: |" * len(FORMS), sep="\n", flush=True)
    for name in options.cases or CASES:
        (results,) = run_in_subprocesses(measure_case, [(name, options.rounds, options.seconds)])
        cells = []
        for form in FORMS:
            ratios = [one / stock for one, stock in zip(results[form], results["stock"], strict=True)]
            spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}]"
            cells.append(f"{statistics.median(results[form]):.2f} ({spread})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
