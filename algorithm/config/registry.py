"""One table of names, each looked up when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from algorithm.errors import UserError

ADAPTERS = {
    "GYM": "algorithm.adapters.gym:GymAdapter",
    "ATARI": "algorithm.adapters.atari:AtariAdapter",
    "DM_CONTROL": "algorithm.adapters.dm_control:DmControlAdapter",
    "PETTINGZOO": "algorithm.adapters.pettingzoo:PettingZooAdapter",
    "UNITY": "algorithm.adapters.unity.adapter:UnityAdapter",
    "PROBE": "algorithm.adapters.probe:ProbeAdapter",
}
AGENTS = {"ACER": "algorithm.agents.acer.agent:Acer", "SAC": "algorithm.agents.sac.agent:Sac"}
RUNTIMES = {"LOCAL": "algorithm.runtimes.local:LocalRuntime"}
AUXILIARIES: dict[str, str] = {}
EXPLORERS = {"action_noise": "algorithm.exploration.action_noise:ActionNoise"}

TABLES: Mapping[str, Mapping[str, str]] = {
    "env_type": ADAPTERS,
    "algorithm": AGENTS,
    "runtime": RUNTIMES,
    "auxiliaries": AUXILIARIES,
    "explorer": EXPLORERS,
}


def find_class(kind: str, name: str) -> Any:
    """The class that `name` stands for, whatever its case. Raises UserError naming what there is."""
    table = TABLES[kind]
    rows = {key.casefold(): row for key, row in table.items()}
    if name.casefold() not in rows:
        raise UserError(f"{kind} {name!r} is unknown; there is {', '.join(table) or 'none yet'}")
    module, attribute = rows[name.casefold()].split(":")
    return getattr(import_module(module), attribute)


def build_object(kind: str, name: str, settings: Any, *arguments: Any) -> Any:
    """What `name` stands for, made from `arguments` and its settings: keyword arguments, or the one argument.

    Raises UserError where they do not fit.
    """
    cls = find_class(kind, name)
    try:
        return cls(*arguments, **settings) if isinstance(settings, Mapping) else cls(*arguments, settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"{kind}.{name}: {error}") from error
