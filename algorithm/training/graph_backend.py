"""Repeating the operations of a function without running the function: the contract, and CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from algorithm.errors import UserError

Result = TypeVar("Result")
Replay = Callable[[], object]

WARM_UPS = 3  # calls before the one that is captured: they load kernels, and move constants to the device once
ADVICE = "set base_config.cuda_graphs to off"
WAITS = "synchronizing CUDA operation"  # part of torch's warning


class GraphBackend(ABC):
    """A way to capture a function: to repeat its operations on the same tensors.

    The function must make the same operations in each call, without reading values of tensors. Its inputs and its state
    are tensors that are changed in place, random numbers are from torch's generators.
    """

    @abstractmethod
    def run(self, function: Callable[[], Result]) -> Result:
        """Run a function as it is, in the way that `capture` needs before it."""

    @abstractmethod
    def find_waits(self, function: Callable[[], Result]) -> tuple[Result, list[str]]:
        """Run a function as `run` does. Return its result, and the operations that waited for the device."""

    @abstractmethod
    def capture(self, function: Callable[[], Result]) -> tuple[Result, Replay]:
        """Make the operations of a function once.

        Returns:
            The result of the function, and a function that makes the operations again, which changes the tensors of the
            result.

        Raises:
            UserError: The function cannot be captured.
        """


class CudaGraphs(GraphBackend):
    """Captures as CUDA graphs, each with its own memory.

    All functions run on one stream, which is not the default stream: with torch, the gradient of a parameter is added
    on the stream on which the parameter was used first, and the default stream cannot be captured. The streams wait for
    each other on the device, never on the host.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)

    def run(self, function: Callable[[], Result]) -> Result:
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = function()
        current.wait_stream(self.stream)
        return result

    def find_waits(self, function: Callable[[], Result]) -> tuple[Result, list[str]]:
        with warnings.catch_warnings(record=True) as caught, _warn_of_waits():
            warnings.simplefilter("always")
            result = self.run(function)
        return result, [f"{item.filename}:{item.lineno}" for item in caught if WAITS in str(item.message)]

    def capture(self, function: Callable[[], Result]) -> tuple[Result, Replay]:
        gc.collect()  # graphs of autograd that wait for it would keep nodes of another stream
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as that which writes checkpoints, may use the device meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                result = function()
        except RuntimeError as error:
            reason = " ".join(str(error.__context__ or error).split())  # the end of a failed capture fails, too
            raise UserError(f"an update cannot be captured as a CUDA graph ({reason}): {ADVICE}") from error
        with torch.cuda.device(self.stream.device):
            graph.replay()  # capturing has made no operation
        return result, graph.replay


@contextmanager
def _warn_of_waits() -> Iterator[None]:
    """Warn of each operation of a CUDA device for which the host waits, in the block."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


class CapturedFunction(Generic[Result]):
    """A function that runs as it is in its first `WARM_UPS` calls, is captured in the next, and then only repeated.

    Args:
        backend: Captures the function.
        function: The function, of the kind that GraphBackend describes.

    Attributes:
        result: The result of the last call. From the captured call on, it has the same tensors.
        waits: The operations of the last warm-up that waited for the device: the function cannot be captured if there
            are any.
    """

    result: Result

    def __init__(self, backend: GraphBackend, function: Callable[[], Result]):
        self._backend, self._function = backend, function
        self._n_calls = 0
        self._replay: Replay | None = None
        self.waits: list[str] = []

    @property
    def is_warm(self) -> bool:
        """Whether the next call is captured, or one was."""
        return self._n_calls >= WARM_UPS

    def __call__(self) -> Result:
        """Make the operations once, and return `result`."""
        if self._replay:
            self._replay()
            return self.result
        if self.is_warm:
            self.result, self._replay = self._backend.capture(self._function)
        elif self._n_calls == WARM_UPS - 1:
            self.result, self.waits = self._backend.find_waits(self._function)
        else:
            self.result = self._backend.run(self._function)
        self._n_calls += 1
        return self.result
