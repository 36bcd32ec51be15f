"""Checks of an ONNX file that need a run: finite outputs, bounded actions, action masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from algorithm.tools.export.onnx_model import OnnxModel, make_session, run_session
from algorithm.tools.export.signature import (
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    DISCRETE_SIZES,
    MASKS,
)

LARGE_INPUT = 1e3  # standard deviation of observations, for which unbounded actions exceed [-1, 1]


def run_probes(model: OnnxModel) -> list[str]:
    """Return the violations of a file whose inputs are correct, each with the number of its rule in docs/unity.md."""
    try:
        session = make_session(model.path.read_bytes())
    except Exception as error:  # onnxruntime raises several types
        return [f"I7: onnxruntime cannot load the file ({_format_error(error)})"]
    rng = np.random.default_rng(0)
    return [*_check_zeros(model, session), *_check_bounds(model, session, rng), *_check_masks(model, session, rng)]


def _check_zeros(model: OnnxModel, session: Any) -> Iterator[str]:
    """Run the file on zeros, masks included, as Unity does when it loads a model, and in a larger batch."""
    for batch, rule in ((1, "I7"), (3, "I2")):
        feed = {name: np.zeros((batch, *info.sample_shape), np.float32) for name, info in model.inputs.items()}
        outputs = _try_run(session, feed)
        if isinstance(outputs, str):
            yield f"{rule}: the file does not run on zeros in a batch of {batch} ({outputs})"
            return
        for name, value in outputs.items():
            if not np.isfinite(value).all():
                yield f"{rule}: {name} is not finite if all inputs are 0"
            shape = tuple(batch if isinstance(axis, str) else axis for axis in model.outputs[name].shape)
            if value.shape != shape:
                yield f"{rule}: {name} has the shape {list(value.shape)} in a batch of {batch}, not {list(shape)}"
        yield from _check_indices(model, outputs)


def _check_bounds(model: OnnxModel, session: Any, rng: np.random.Generator) -> Iterator[str]:
    outputs = _try_run(session, _make_feed(model, rng, 16, LARGE_INPUT))
    if isinstance(outputs, str):
        yield f"I7: the file does not run ({outputs})"
        return
    for name in (CONTINUOUS, CONTINUOUS_MODE):
        value = outputs.get(name)
        if value is not None and not (np.abs(value) <= 1).all():
            yield f"C3: {name} reaches {np.abs(value).max():.3g}; actions must be from -1 to 1"
    yield from _check_indices(model, outputs)


def _check_masks(model: OnnxModel, session: Any, rng: np.random.Generator) -> Iterator[str]:
    """Allow a single action of each branch in turn: it must be chosen, by sampling and deterministically."""
    sizes = model.find_constant(DISCRETE_SIZES)
    if MASKS not in model.inputs or sizes is None:
        return
    begin = 0
    for branch, size in enumerate(sizes.ravel().astype(int)):
        feed = _make_feed(model, rng, size, 1.0)
        feed[MASKS][:] = 1
        feed[MASKS][:, begin : begin + size] = np.eye(size)
        begin += size
        outputs = _try_run(session, feed)
        if isinstance(outputs, str):
            yield f"I3: the file does not run with masks ({outputs})"
            return
        for name in (DISCRETE, DISCRETE_MODE):
            if name in outputs and not np.array_equal(outputs[name][:, branch], np.arange(size)):
                yield f"I3: {name} selects masked actions of branch {branch}"


def _check_indices(model: OnnxModel, outputs: dict[str, np.ndarray]) -> Iterator[str]:
    sizes = model.find_constant(DISCRETE_SIZES)
    for name in (DISCRETE, DISCRETE_MODE):
        if name in outputs and sizes is not None:
            value = outputs[name]
            if value.shape[-1:] == (sizes.size,) and ((value < 0) | (value >= sizes.ravel())).any():
                yield f"C4: {name} ranges from {value.min()} to {value.max()}, beyond the sizes of its branches"


def _make_feed(model: OnnxModel, rng: np.random.Generator, batch: int, scale: float) -> dict[str, np.ndarray]:
    feed = {
        name: (scale * rng.standard_normal((batch, *info.sample_shape))).astype(np.float32)
        for name, info in model.inputs.items()
    }
    if MASKS in feed:
        feed[MASKS] = np.ones_like(feed[MASKS])
    return feed


def _try_run(session: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray] | str:
    try:
        return run_session(session, feed)
    except Exception as error:  # onnxruntime raises several types
        return _format_error(error)


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())
