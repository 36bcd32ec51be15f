"""The state of every generator that a run may draw from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from algorithm.training.components import Team


def generators_of(team: Team) -> dict[str, np.random.Generator]:
    """A team's own."""
    return {"agent": team.agent.rng, "feed": team.feed.rng, "replay": team.feed.replay.rng}


def of_process() -> dict[str, Any]:
    """Those that belong to the process, which a network or a simulator may use; as values that JSON holds."""
    numpy = np.random.get_state(legacy=False)
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}},
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in devices],
    }


def restore_process(state: Mapping[str, Any]) -> None:
    """Take over what `of_process` gave; of the devices, those that are there."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(_tensor(state["torch"]))
    for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(saved), device)


def _text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), np.uint8).copy())
