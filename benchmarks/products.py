"""Compare an update of ACER or SAC with its matrix products alone, which are the floor of its time.

The products of a few updates are recorded, then repeated with random factors of the same shapes and strides. Updates
and products alternate in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from layer_forms import CASES, make_update
from measure import describe_setup, format_spread, run_in_subprocesses
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from algorithm.networks import fast_products
from algorithm.parts.torch_setup import configure_torch

UPDATES = ("ACER CartPole", "flash_small", "crossq")  # of layer_forms
RECORDED = 6  # updates, a multiple of `policy_update_every`
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
MIN_MULTIPLICATIONS = 100_000  # of a product that counts


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


def measure_update(name: str, rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of an update, and of its products, in each round."""
    configure_torch()
    fast_products.USES_ONEDNN = False  # while products are recorded; factors would have other layouts otherwise
    update = make_update(CASES[name], "fused")
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
    for name in UPDATES:
        (results,) = run_in_subprocesses(measure_update, [(name, options.rounds)])
        update, products = (statistics.median(results[each]) for each in ("update", "products"))
        ratios = [a / b for a, b in zip(results["update"], results["products"], strict=True)]
        print(f"{name}: update {update:.2f} ms, products {products:.2f} ms, ratio {format_spread(ratios, 2)}")


if __name__ == "__main__":
    main()
