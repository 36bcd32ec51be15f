"""CPU time of an ACER update on images, relative to a lower bound: 84x84x4, NatureCnn(512), 8 sequences of 20 steps.

The network runs forward and backward on 168 frames, the average network forward on 160. The lower bound is the time
that their multiplications and additions would take at the speed at which one thread multiplies large matrices. It is
measured alternately with the updates. An update consists of the network, the losses and the step of the optimizer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measure import describe_setup, format_spread

import torch  # isort: skip  # after measure has set the threads
from torch import nn

from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import resolve
from algorithm.networks import Blueprint, NatureCnn
from algorithm.parts.torch_setup import configure_torch
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

MAX_RATIO = 1.25  # of the time of an update to the lower bound
SHAPE, ACTIONS = (4, 84, 84), 6
LENGTH, BATCH = 20, 8  # of the sequences
SIDE = 1024  # of the matrices whose product is timed
PRODUCTS = 6  # take about as long as one update


def make_learner() -> Learner:
    """Return a learner as a run builds it."""
    role = Role(BATCH, {"obs": ObsSpec(SHAPE, "uint8", high=255)}, ActionSpec(branches=(ACTIONS,)))
    blueprint = Blueprint(encoders={"*": NatureCnn(512)})
    return Learner(Acer(resolve([]).agent, blueprint, role, np.random.default_rng(0)), role, {}, None)


def make_batch() -> Rollout:
    """Return a batch of random frames."""
    rng, shape = np.random.default_rng(0), (LENGTH, BATCH)
    return Rollout(
        obs={"obs": rng.integers(0, 256, (LENGTH + 1, BATCH, *SHAPE), np.uint8)},
        first=np.zeros((LENGTH + 1, BATCH), bool),
        raw_action=rng.integers(0, ACTIONS, (*shape, 1)).astype(np.float32),
        reward=rng.standard_normal(shape, np.float32),
        alive=np.ones(shape, bool),
        behavior=np.full((*shape, ACTIONS), -np.log(ACTIONS), np.float32),
        memory=np.zeros((BATCH, 0), np.float32),
        version=np.zeros(BATCH, np.int64),
        lane=np.arange(BATCH),
        continues_previous=np.ones(BATCH, bool),
        weight=np.ones(BATCH, np.float32),
        index=np.zeros(BATCH, np.int64),
    )


def count_operations(encoder: nn.Module) -> float:
    """Return the floating-point operations of one update, two for each product.

    The network counts three times (forward, gradient of the weights, gradient of the inputs except in the first
    layer), the average network once.
    """
    layers: list[float] = []
    shape = SHAPE
    for layer in encoder.layers[::2]:  # an activation follows each convolution
        shape = tuple(nn.Sequential(layer)(torch.zeros(1, *shape)).shape[1:])
        layers.append(2.0 * layer.weight.numel() * shape[1] * shape[2])
    layers.append(2.0 * encoder.linear.weight.numel())
    frames, forward = (LENGTH + 1) * BATCH, sum(layers)
    return frames * (3 * forward - layers[0]) + LENGTH * BATCH * forward


def make_network_pass(learner: Learner, rollout: Rollout) -> Callable[[], None]:
    """Return a function that runs only the encoders: forward and backward, and the average one forward."""
    network, average = learner.agent.policy.torso.encoders[0], learner.agent.average_policy.network.torso.encoders[0]
    frames = torch.from_numpy(rollout.obs["obs"])
    all_steps, learned = frames.flatten(0, 1), frames[:-1].flatten(0, 1)
    gradient = torch.rand(len(all_steps), network.size)

    def run() -> None:
        network(all_steps).backward(gradient)
        with torch.no_grad():
            average(learned)

    return run


def measure_cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def update(learner: Learner, rollout: Rollout) -> None:
    """Make one update."""
    learner.compute_gradients(rollout)
    learner.apply_gradients()


def main() -> None:
    """Print medians and ranges over the rounds, and whether the median ratio is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    configure_torch()  # as every run does
    learner, rollout, square = make_learner(), make_batch(), torch.rand(SIDE, SIDE)
    count = count_operations(learner.agent.policy.torso.encoders[0])
    network = make_network_pass(learner, rollout)
    lower_bounds, networks, updates = [], [], []
    for round_index in range(options.rounds + 2):
        multiply = measure_cpu_seconds(lambda: [square @ square for _ in range(PRODUCTS)]) / PRODUCTS
        alone = measure_cpu_seconds(network)
        seconds = measure_cpu_seconds(lambda: update(learner, rollout))
        if round_index >= 2:  # the first rounds allocate memory
            lower_bounds.append(count * multiply / (2 * SIDE**3))
            networks.append(alone)
            updates.append(seconds)
    print(describe_setup())
    print(f"{count / 1e9:.1f} GFLOP; median [range]")
    print("| quantity | value |")
    print("| --- | ---: |")
    print(f"| one thread, GFLOP/s | {format_spread((count / bound / 1e9 for bound in lower_bounds), 1)} |")
    print(f"| lower bound, ms | {format_spread((1e3 * bound for bound in lower_bounds), 1)} |")
    for name, times in {"network, forward and backward": networks, "one update of Learner": updates}.items():
        ratios = [seconds / bound for seconds, bound in zip(times, lower_bounds, strict=True)]
        print(f"| {name}, ms | {format_spread((1e3 * seconds for seconds in times), 1)} |")
        print(f"| {name}, relative to the lower bound | {format_spread(ratios, 2)} |")
        print(f"| at most {MAX_RATIO} times the lower bound | {'yes' if np.median(ratios) <= MAX_RATIO else 'no'} |")


if __name__ == "__main__":
    main()
