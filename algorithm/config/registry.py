"""The names of adapters, algorithms, runtimes and explorers in settings; their classes are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
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
AGENTS = {
    "ACER": "algorithm.agents.acer.agent:Acer",
    "SAC": "algorithm.agents.sac.agent:Sac",
    "REACTOR": "algorithm.agents.reactor.agent:Reactor",
    "A2C": "algorithm.agents.a2c.agent:A2C",
    "PPO": "algorithm.agents.ppo.agent:Ppo",
}
AGENTS_WITHOUT_REPLAY = ("A2C", "PPO")
RUNTIMES = {
    "LOCAL": "algorithm.processes.fleet:LocalFleet",
    "WORKERS": "algorithm.processes.workers:WorkersFleet",
    "CLUSTER": "algorithm.processes.cluster:ClusterFleet",
}
AUXILIARIES = {
    "curiosity": "algorithm.auxiliaries.curiosity:Curiosity",
    "prediction": "algorithm.auxiliaries.prediction:Prediction",
    "episodic": "algorithm.auxiliaries.episodic:Episodic",
    "rnd": "algorithm.auxiliaries.rnd:Rnd",
    "atc": "algorithm.auxiliaries.atc:AugmentedTemporalContrast",
    "byol": "algorithm.auxiliaries.byol:BootstrapYourOwnLatent",
}
EXPLORERS = {
    "action_noise": "algorithm.exploration.action_noise:ActionNoise",
    "action_repeat": "algorithm.exploration.action_repeat:ActionRepeat",
    "noise_repeat": "algorithm.exploration.noise_repeat:NoiseRepeat",
    "novel_action": "algorithm.exploration.novel_action:NovelAction",
}
TRACKERS = {
    "wandb": "algorithm.tracking.wandb_tracker:WandbTracker",
    "mlflow": "algorithm.tracking.mlflow_tracker:MlflowTracker",
    "trackio": "algorithm.tracking.trackio_tracker:TrackioTracker",
}

TABLES: Mapping[str, Mapping[str, str]] = {
    "env_type": ADAPTERS,
    "algorithm": AGENTS,
    "runtime": RUNTIMES,
    "auxiliaries": AUXILIARIES,
    "explorer": EXPLORERS,
    "tracker": TRACKERS,
}


def find_class(kind: str, name: str) -> Any:
    """Return the class of a name in a table, whose case does not matter, or of `module:Class` in a user's module.

    Raises UserError for an unknown name, and for a module or a class that cannot be imported.
    """
    table = TABLES[kind]
    if ":" in name:
        return _import_class(kind, name)
    rows = {key.casefold(): row for key, row in table.items()}
    if name.casefold() not in rows:
        raise UserError(f"{kind} {name!r} is unknown; use one of: {', '.join(table) or 'none yet'}")
    module, attribute = rows[name.casefold()].split(":")
    return getattr(import_module(module), attribute)


def _import_class(kind: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{kind} {name!r} cannot be imported: {error}; its module must be on PYTHONPATH") from error


def get_agent_section(algorithm: str) -> str:
    """Return the name of the section of an algorithm: `sac_config` for `SAC`, `a2c_config` for `my_module:A2C`."""
    return f"{algorithm.rpartition(':')[2].lower()}_config"


def make_agent_defaults(algorithm: str) -> dict[str, Any]:
    """Return the section with the default settings of an algorithm `module:Class`; empty for a name in the table.

    Raises UserError if a field of its `Settings` has no default, since default_config.yaml has none for it.
    """
    if ":" not in algorithm:
        return {}
    settings = find_class("algorithm", algorithm).Settings
    try:
        return {get_agent_section(algorithm): asdict(settings())}
    except TypeError as error:
        raise UserError(f"algorithm {algorithm!r}: the fields of its Settings need defaults: {error}") from error


def make_auxiliary_defaults(name: str) -> dict[str, Any]:
    """Return the default settings of an auxiliary. Raises UserError if its class does not define them."""
    cls = find_class("auxiliaries", name)
    try:
        return asdict(cls.Settings())
    except (AttributeError, TypeError) as error:
        raise UserError(
            f"auxiliaries {name!r}: the class needs a dataclass Settings whose fields have defaults: {error}"
        ) from error


def build_object(kind: str, name: str, settings: Any, *arguments: Any) -> Any:
    """Return an object of the class of a name.

    Args:
        kind: Key of `TABLES`.
        name: Name of the class, which matches without case.
        settings: Keyword arguments of the class, or its last argument.
        arguments: Arguments of the class before these.

    Raises:
        UserError: The settings do not fit.
    """
    cls = find_class(kind, name)
    try:
        return cls(*arguments, **settings) if isinstance(settings, Mapping) else cls(*arguments, settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"{kind}.{name}: {error}") from error
