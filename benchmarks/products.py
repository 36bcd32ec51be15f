"""Compare an update of SAC on HalfCheetah with its matrix products alone, which are the floor of its time.

The products of a few updates are recorded, then repeated with random factors of the same shapes and strides. Updates
and products alternate in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import describe_setup, format_spread, run_in_subprocesses
from soft import ACTIONS, CAPACITY, OBS, make_row
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from algorithm.agents.sac.agent import Sac
from algorithm.agents.settings import SacSettings
from algorithm.config.yaml_layers import load_defaults, read_variant
from algorithm.networks import fast_products
from algorithm.parts.env_folder import find_folder
from algorithm.parts.torch_setup import configure_torch
from algorithm.parts.user_code import load_blueprint
from algorithm.replay import Replay
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

ENVIRONMENT = "mujoco/half_cheetah"
VARIANTS = ("flash_small", "crossq")
RECORDED = 6  # updates, a multiple of `policy_update_every`
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
MIN_MULTIPLICATIONS = 100_000  # of a product that counts


def make_update(variant: str) -> Callable[[], None]:
    """Return a function that samples a batch and updates the networks of a variant."""
    folder = find_folder(ENVIRONMENT)
    assert folder is not None
    rng, tree = np.random.default_rng(0), read_variant(folder / "config.yaml", variant)
    settings = SacSettings(**{**load_defaults()["sac_config"], **tree.get("sac_config", {})})
    blueprint = load_blueprint(folder, "nn.py", tree["nn_config"])
    assert blueprint is not None
    role = Role(1, {"obs": ObsSpec((OBS,))}, ActionSpec(ACTIONS))
    learner = Learner(Sac(settings, blueprint, role, rng), role, {}, None)
    replay = Replay(capacity=CAPACITY, lanes=1, chunk=1, length=1, rng=rng)
    for row in range(CAPACITY):
        replay.add(make_row(rng, row == 0))

    def update() -> None:
        learner.compute_gradients(replay.sample(settings.batch_size))
        learner.apply_gradients()

    return update


class ProductRecorder(TorchDispatchMode):
    """A recorder of the matrix products of torch, with random factors in place of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, list[Any]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation in PRODUCTS and args[-2].numel() * args[-1].shape[-1] >= MIN_MULTIPLICATIONS:
            self.calls.append((operation, [_randomize(value) for value in args]))
        return operation(*args, **(kwargs or {}))

    @torch.inference_mode()
    def repeat(self) -> None:
        """Compute the recorded products."""
        for operation, args in self.calls:
            operation(*args)


def measure_variant(variant: str, rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of an update, and of its products, in each round."""
    configure_torch()
    fast_products.USES_ONEDNN = False  # while products are recorded; factors would have other layouts otherwise
    update = make_update(variant)
    for _ in range(2 * RECORDED):
        update()
    with ProductRecorder() as recorder:
        for _ in range(RECORDED):
            update()
    results: dict[str, list[float]] = {"update": [], "products": []}
    for _ in range(rounds):
        results["update"].append(_measure_milliseconds(update, 2 * RECORDED) / (2 * RECORDED))
        results["products"].append(_measure_milliseconds(recorder.repeat, 2) / (2 * RECORDED))
    return results


def _measure_milliseconds(function: Callable[[], None], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - begin) * 1e3


def _randomize(value: Any) -> Any:
    return torch.empty_strided(value.shape, value.stride()).normal_() if isinstance(value, Tensor) else value


def main() -> None:
    """Print the time of an update, of its products, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(describe_setup(), flush=True)
    for variant in VARIANTS:
        (results,) = run_in_subprocesses(measure_variant, [(variant, options.rounds)])
        update, products = (statistics.median(results[name]) for name in ("update", "products"))
        ratios = [a / b for a, b in zip(results["update"], results["products"], strict=True)]
        print(f"{variant}: update {update:.1f} ms, products {products:.1f} ms, ratio {format_spread(ratios, 2)}")


if __name__ == "__main__":
    main()
