"""The names of classes in settings, with the classes of their settings; all are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from importlib import import_module
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from algorithm.agents.settings import AgentSettings
from algorithm.auxiliaries.settings import LossSettings
from algorithm.config.yaml_layers import load_inherited_defaults
from algorithm.errors import UserError

ADAPTERS = {
    "GYM": "algorithm.adapters.gym:GymAdapter",
    "ATARI": "algorithm.adapters.atari:AtariAdapter",
    "DM_CONTROL": "algorithm.adapters.dm_control:DmControlAdapter",
    "PETTINGZOO": "algorithm.adapters.pettingzoo:PettingZooAdapter",
    "UNITY": "algorithm.adapters.unity.adapter:UnityAdapter",
    "GODOT": "algorithm.adapters.godot.adapter:GodotAdapter",
    "PROBE": "algorithm.adapters.probe:ProbeAdapter",
}
AGENTS = {
    "ACER": "algorithm.agents.acer.agent:Acer",
    "SAC": "algorithm.agents.sac.agent:Sac",
    "REACTOR": "algorithm.agents.reactor:Reactor",
    "A2C": "algorithm.agents.a2c:A2C",
    "PPO": "algorithm.agents.ppo:Ppo",
    "POCA": "algorithm.agents.poca:Poca",
}
AUXILIARIES = {
    "curiosity": "algorithm.auxiliaries.curiosity:Curiosity",
    "prediction": "algorithm.auxiliaries.prediction:Prediction",
    "episodic": "algorithm.auxiliaries.episodic:Episodic",
    "rnd": "algorithm.auxiliaries.rnd:Rnd",
    "behavior_cloning": "algorithm.auxiliaries.cloning:BehaviorCloning",
    "gail": "algorithm.auxiliaries.gail:Gail",
    "atc": "algorithm.auxiliaries.siamese:AugmentedTemporalContrast",
    "byol": "algorithm.auxiliaries.siamese:BootstrapYourOwnLatent",
}
# What tools do for a run while it trains and when it ends; without the package of a tool, its lines are removed.
RUN_TOOLS = {
    "exporter": "algorithm.tools.export.export:RunExporter",
    "report": "algorithm.tools.reports.report_files:write_report",
    "curve": "algorithm.tools.reports.report_files:draw_curve",
    "comparison": "algorithm.tools.reports.comparison_output:compare_repeats",
}

TABLES: dict[str, dict[str, str]] = {
    "env_type": ADAPTERS,
    "algorithm": AGENTS,
    "auxiliaries": AUXILIARIES,
    "runtime": {
        "LOCAL": "algorithm.processes.fleet:LocalFleet",
        "WORKERS": "algorithm.processes.workers:WorkersFleet",
        "CLUSTER": "algorithm.processes.cluster:ClusterFleet",
    },
    "explorer": {
        "action_noise": "algorithm.exploration.explorers:ActionNoise",
        "action_repeat": "algorithm.exploration.explorers:ActionRepeat",
        "noise_repeat": "algorithm.exploration.explorers:NoiseRepeat",
        "novel_action": "algorithm.exploration.explorers:NovelAction",
    },
    "demonstrations": {
        "minari": "algorithm.adapters.env_episodes:read_dataset",
        "demo": "algorithm.adapters.unity.demonstration_files:read_file",
    },
    "tracker": {
        "wandb": "algorithm.tracking.trackers:WandbTracker",
        "mlflow": "algorithm.tracking.trackers:MlflowTracker",
        "trackio": "algorithm.tracking.trackers:TrackioTracker",
    },
}
# The base classes of settings, by table; their modules, which do not import torch, have XSettings for a class X above.
SETTINGS: Mapping[str, type] = {"algorithm": AgentSettings, "auxiliaries": LossSettings}


def find_class(kind: str, name: str) -> Any:
    """Return the class of a name in a table, whose case does not matter, or of `module:Class` in a user's module.

    Raises UserError for an unknown name, and for a module or a class that cannot be imported.
    """
    return resolve_name(check_name(kind, name))


def check_name(kind: str, name: str) -> str:
    """Return `module:Class` for a name. Raises UserError for an unknown name, or a user's class without an import."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"{kind} {name!r} cannot be imported: {error}; its module must be on PYTHONPATH") from error
        return name
    rows = {key.casefold(): row for key, row in TABLES[kind].items()}
    if name.casefold() not in rows:
        raise UserError(f"{kind} {name!r} is unknown; use one of: {', '.join(TABLES[kind])}")
    return rows[name.casefold()]


def find_settings(kind: str, name: str) -> Any:
    """Return the class of the settings of an algorithm or an auxiliary; of a class outside of Samara, its `Settings`.

    Raises UserError as `find_class` does, and for a class without settings.
    """
    path, base = check_name(kind, name), SETTINGS[kind]
    if path.startswith("algorithm."):
        return resolve_name(f"{base.__module__}:{path.partition(':')[2]}Settings")
    settings = getattr(resolve_name(path), "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, base)):
        raise UserError(
            f"{kind} {name!r}: the class needs a dataclass Settings that inherits {base.__module__}.{base.__name__}"
        )
    return settings


def find_run_tool(name: str) -> Any:
    """Return the function, or the class, of a tool for runs; None without the tool."""
    return resolve_name(RUN_TOOLS[name]) if name in RUN_TOOLS else None


def get_agent_section(algorithm: str) -> str:
    """Return the name of the section of an algorithm: `sac_config` for `SAC`, `a2c_config` for `my_module:A2C`."""
    return f"{algorithm.rpartition(':')[2].lower()}_config"


def make_agent_defaults(algorithm: str) -> dict[str, Any]:
    """Return the section with the default settings of an algorithm `module:Class`; empty for a name in the table.

    Settings of the optimizer that it inherits have the defaults of default_config.yaml, unless it sets its own.

    Raises UserError if another field of its `Settings` has no default.
    """
    if ":" not in algorithm:
        return {}
    return {get_agent_section(algorithm): make_defaults("algorithm", algorithm, load_inherited_defaults())}


def make_defaults(kind: str, name: str, inherited: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the default settings of a class: its own, or `inherited` ones. Raises UserError if a field has none."""
    settings = find_settings(kind, name)
    without = {field.name for field in fields(settings) if field.default is field.default_factory is MISSING}
    try:
        return asdict(settings(**{name: value for name, value in inherited.items() if name in without}))
    except TypeError as error:
        raise UserError(f"{kind} {name!r}: the fields of its Settings need defaults: {error}") from error


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
