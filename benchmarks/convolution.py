"""An update of ACER on images against the time its multiplications take: 84x84x4, NatureCnn(512), 8 traces of 20 rows.

The network runs forward and backward on 168 frames, the average network forward on 160. The floor is what their
multiplications and additions take at the speed of one thread in products of large matrices, measured in turns with the
updates. An update is the network, the losses and the optimizer's step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measure import machine, spread

import torch  # isort: skip  # after measure has set the threads
from torch import nn

from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import resolve
from algorithm.networks import Blueprint, NatureCnn
from algorithm.rollout import Rollout
from algorithm.runs.torch_setup import configure_torch
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

LIMIT = 1.25  # times the floor
SHAPE, ACTIONS = (4, 84, 84), 6
ROWS, COLUMNS = 20, 8
SIDE = 1024  # of the matrices whose product is the measure
PRODUCTS = 6  # of them take as long as one update


def learner() -> Learner:
    """As a run builds it."""
    role = Role(COLUMNS, {"obs": ObsSpec(SHAPE, "uint8", high=255)}, ActionSpec(branches=(ACTIONS,)))
    blueprint = Blueprint(encoders={"*": NatureCnn(512)})
    return Learner(Acer(resolve([]).agent, blueprint, role, np.random.default_rng(0)), role, {}, None)


def batch() -> Rollout:
    """Random frames."""
    rng, row = np.random.default_rng(0), (ROWS, COLUMNS)
    return Rollout(
        obs={"obs": rng.integers(0, 256, (ROWS + 1, COLUMNS, *SHAPE), np.uint8)},
        first=np.zeros((ROWS + 1, COLUMNS), bool),
        raw_action=rng.integers(0, ACTIONS, (*row, 1)).astype(np.float32),
        reward=rng.standard_normal(row, np.float32),
        alive=np.ones(row, bool),
        behavior=np.full((*row, ACTIONS), -np.log(ACTIONS), np.float32),
        memory=np.zeros((COLUMNS, 0), np.float32),
        version=np.zeros(COLUMNS, np.int64),
        lane=np.arange(COLUMNS),
        continues_previous=np.ones(COLUMNS, bool),
        weight=np.ones(COLUMNS, np.float32),
        index=np.zeros(COLUMNS, np.int64),
    )


def operations(encoder: nn.Module) -> float:
    """Of one update: two for each product, three passes with a gradient (less the first layer's input), one without."""
    layers: list[float] = []
    shape = SHAPE
    for layer in encoder.layers:
        shape = tuple(nn.Sequential(layer)(torch.zeros(1, *shape)).shape[1:])
        layers.append(2.0 * layer.weight.numel() * shape[1] * shape[2])
    layers.append(2.0 * encoder.linear.weight.numel())
    frames, forward = (ROWS + 1) * COLUMNS, sum(layers)
    return frames * (3 * forward - layers[0]) + ROWS * COLUMNS * forward


def network_alone(own: Learner, rollout: Rollout) -> Callable[[], None]:
    """Forward and backward of the encoder on all frames, forward of the average one on those that are learned."""
    network, average = own.agent.policy.torso.encoders[0], own.agent.average.network.torso.encoders[0]
    frames = torch.from_numpy(rollout.obs["obs"])
    every, learned = frames.flatten(0, 1), frames[:-1].flatten(0, 1)
    gradient = torch.rand(len(every), network.size)

    def run() -> None:
        network(every).backward(gradient)
        with torch.no_grad():
            average(learned)

    return run


def timed(call: Callable[[], object]) -> float:
    """CPU seconds."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def update(own: Learner, rollout: Rollout) -> None:
    """Make one update."""
    own.compute_gradients(rollout)
    own.apply_gradients()


def main() -> None:
    """Print the ratio of each of several turns, and whether their median keeps the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    configure_torch()  # as every run does
    own, rollout, square = learner(), batch(), torch.rand(SIDE, SIDE)
    count = operations(own.agent.policy.torso.encoders[0])
    network = network_alone(own, rollout)
    floors, networks, updates = [], [], []
    for turn in range(options.turns + 2):
        multiply = timed(lambda: [square @ square for _ in range(PRODUCTS)]) / PRODUCTS
        alone, seconds = timed(network), timed(lambda: update(own, rollout))
        if turn >= 2:  # the first ones make what is kept
            floors.append(count * multiply / (2 * SIDE**3))
            networks.append(alone)
            updates.append(seconds)
    print(machine())
    print(f"{count / 1e9:.1f} GFLOP; median [range]")
    print("| what | |")
    print("| --- | ---: |")
    print(f"| one thread, GFLOP/s | {spread((count / floor / 1e9 for floor in floors), 1)} |")
    print(f"| floor, ms | {spread((1e3 * floor for floor in floors), 1)} |")
    for what, taken in {"network, forward and backward": networks, "one update of Learner": updates}.items():
        ratios = [one / floor for one, floor in zip(taken, floors, strict=True)]
        print(f"| {what}, ms | {spread((1e3 * one for one in taken), 1)} |")
        print(f"| {what}, times the floor | {spread(ratios, 2)} |")
        print(f"| within {LIMIT} times the floor | {'yes' if np.median(ratios) <= LIMIT else 'no'} |")


if __name__ == "__main__":
    main()
