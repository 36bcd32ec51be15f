"""The states of the random generators of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from algorithm.training.components import AgentComponents


def list_generators(components: AgentComponents) -> dict[str, np.random.Generator]:
    """Return the generators of the components of a role, by name."""
    generators = {"agent": components.agent.rng, "scheduler": components.scheduler.rng}
    if replay := components.scheduler.replay:
        generators["replay"] = replay.rng
    return generators


def get_process_state() -> dict[str, Any]:
    """Return the states of the generators of the process (Python, numpy, torch), in values of JSON."""
    numpy = np.random.get_state(legacy=False)
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}},
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": [_to_hex(state) for state in devices],
    }


def set_process_state(state: Mapping[str, Any]) -> None:
    """Restore what `get_process_state` returned; the states of missing cuda devices are ignored."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(_from_hex(state["torch"]))
    for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_from_hex(saved), device)


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the states of the generators of the process after the block."""
    state = get_process_state()
    try:
        yield
    finally:
        set_process_state(state)


def _to_hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), np.uint8).copy())
