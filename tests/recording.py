"""Backends that capture functions without a CUDA device: by the record of their operations, or by checks of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from algorithm.training.graph_backend import GraphBackend, Replay, Result

aten = torch.ops.aten
# Operations that read values, or whose shapes depend on values: on a CUDA device the host waits for them.
WAITING = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten._unique2.default,
    aten.repeat_interleave.Tensor,
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


def list_tensors(*trees: Any) -> list[Tensor]:
    """Return the tensors in some nested records."""
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]


def find_wait(function: Any, args: Any, kwargs: Any) -> str | None:
    """Return why a CUDA device would wait for an operation; None if it would not."""
    if function in WAITING:
        return f"{function} depends on values"
    if function in INDEXING and any(index.dtype in (torch.bool, torch.uint8) for index in list_tensors(args[1])):
        return f"{function} by a mask depends on values"
    if function is aten.lift_fresh.default:
        return "a tensor is made from values on the host"
    return None


class NoValuesOfHost(TorchFunctionMode):
    """A check that no tensor is made from values on the host in the block, for which a device would wait."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        makes_tensor = function in (torch.tensor, torch.from_numpy, Tensor.new_tensor) or (
            function is torch.as_tensor and not isinstance(args[0], Tensor)
        )
        indexes = function in (Tensor.__getitem__, Tensor.__setitem__)
        parts = args[1] if indexes and isinstance(args[1], tuple) else args[1:2]
        by_list = indexes and any(isinstance(part, list | np.ndarray) for part in parts)
        assert not makes_tensor and not by_list, "a tensor is made from values on the host"
        return function(*args, **(kwargs or {}))


class CapturedOperations(TorchDispatchMode):
    """A record of the operations of a block on tensors, which can be repeated on the same tensors.

    As in a CUDA graph, a result of an operation has the same memory in each repetition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert (wait := find_wait(function, args, kwargs)) is None, wait
        # Views of their own, since operations like squeeze_ change the shapes of tensors.
        arguments = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        result = function(*args, **kwargs)
        self.operations.append((function, *arguments, tree_map_only(Tensor, Tensor.detach, result)))
        return result

    @torch.inference_mode()
    def repeat(self) -> None:
        """Make the operations again."""
        for function, args, kwargs, result in self.operations:
            memories = {tensor.untyped_storage().data_ptr() for tensor in list_tensors(args, kwargs) if tensor.numel()}
            results = list_tensors(result)
            is_new = [tensor.numel() > 0 and tensor.untyped_storage().data_ptr() not in memories for tensor in results]
            if not any(is_new) and not function._schema.is_mutable:
                continue  # a view
            again = list_tensors(function(*args, **kwargs))
            for tensor, value, changes in zip(results, again, is_new, strict=True):
                if changes:
                    tensor.copy_(value)


class RecordingBackend(GraphBackend):
    """Captures on the CPU, by the record of the operations."""

    def __init__(self) -> None:
        self.n_runs = self.n_captures = self.n_replays = 0

    def run(self, function: Callable[[], Result]) -> Result:
        self.n_runs += 1
        return function()

    def find_waits(self, function: Callable[[], Result]) -> tuple[Result, list[str]]:
        return self.run(function), []

    def capture(self, function: Callable[[], Result]) -> tuple[Result, Replay]:
        self.n_captures += 1
        with NoValuesOfHost(), CapturedOperations() as record:
            result = function()

        def replay() -> None:
            self.n_replays += 1
            record.repeat()

        return result, replay


class OneDevice(TorchDispatchMode):
    """A check that all operations of a block are on tensors of one device, and that a CUDA device waits for none.

    `inputs` are weak references to the memory of tensors that were not made in the block. A CUDA graph reads them
    later, so they have to stay.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.n_operations = 0
        self.inputs: dict[int, StorageWeakRef] = {}
        self._made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert (wait := find_wait(function, args, kwargs)) is None, wait
        result = function(*args, **kwargs)
        self.n_operations += 1
        for tensors, references in ((list_tensors(args, kwargs), self.inputs), (list_tensors(result), self._made)):
            for memory in [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]:
                if memory.cdata not in self._made and memory.cdata not in self.inputs:
                    references[memory.cdata] = memory
        for tensor in list_tensors(args, kwargs, result):
            assert tensor.device.type == self.device, f"{function} has a tensor on {tensor.device}"
        return result


@torch.library.impl("aten::_fused_adam_.tensor_lr", "Meta")
def _step_adam_on_meta_device(*args: Any, **kwargs: Any) -> None:
    """Change nothing: torch has this operation for the meta device only with a rate that is a number."""


class CheckingBackend(GraphBackend):
    """Runs each function on the meta device, which has no values, and checks each operation of a captured function.

    On this device an update runs the code for devices other than the CPU.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of each captured function, in operations
        self.inputs: list[StorageWeakRef] = []  # the memory that captured functions read or change

    def run(self, function: Callable[[], Result]) -> Result:
        return function()

    def find_waits(self, function: Callable[[], Result]) -> tuple[Result, list[str]]:
        return function(), []

    def capture(self, function: Callable[[], Result]) -> tuple[Result, Replay]:
        with NoValuesOfHost(), OneDevice("meta") as check:
            result = function()
        self.sizes.append(check.n_operations)
        self.inputs += check.inputs.values()
        return result, lambda: None


def iterate_referents(root: object) -> Iterator[object]:
    """Iterate over what closures, records and containers below an object refer to."""
    seen: set[int] = set()
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        if id(item) in seen or item is None:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple | set):
            pending += item
        elif getattr(item, "__closure__", None):
            pending += [cell.cell_contents for cell in item.__closure__]
        elif hasattr(item, "__dataclass_fields__"):
            pending += [getattr(item, name, None) for name in item.__dataclass_fields__]
