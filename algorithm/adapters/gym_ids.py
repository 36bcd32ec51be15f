"""Ids of Gymnasium environments: search by name, registration, and the env_type that opens an id.

The command line imports this module while it parses arguments. What takes a moment to import is therefore imported
inside the functions that need it.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

# Modules whose import registers ids, with the pattern of these ids. `module:id` imports the module.
ID_PATTERNS_BY_MODULE = {
    "flappy_bird_gymnasium": r"FlappyBird-",
    "minigrid": r"(MiniGrid|BabyAI)-",
    "pybullet_envs_gymnasium": r"\w+Bullet(Env)?-",
}
# Namespaces whose ids another env_type than GYM opens.
ENV_TYPES_BY_NAMESPACE = {
    "ALE": "ATARI",
    "dm_control": "DM_CONTROL",
    **dict.fromkeys(("butterfly", "classic", "sisl"), "PETTINGZOO"),
}


def add_module_prefix(env_id: str) -> str | None:
    """Return `module:id` for an id that only the import of a module registers; None for any other id."""
    modules = (module for module, pattern in ID_PATTERNS_BY_MODULE.items() if re.match(pattern, env_id))
    module = next(modules, None)
    return f"{module}:{env_id}" if module else None


def find_env_type(env_id: str) -> str:
    """Return the env_type that opens an id."""
    return ENV_TYPES_BY_NAMESPACE.get(env_id.partition("/")[0], "GYM")


def register_plugins(namespace: str) -> None:
    """Register the ids of a namespace, in any case, that an installed package offers.

    Packages offer namespaces as entry points of the group `gymnasium.envs`, as MinAtar does.
    """
    from importlib.metadata import entry_points

    import gymnasium

    for plugin in entry_points(group="gymnasium.envs"):
        is_registered = any(spec.namespace == plugin.name for spec in gymnasium.registry.values())
        if plugin.name.casefold() == namespace.casefold() and not is_registered:
            plugin.load()()


def find_id(name: str, namespace: str | None = None) -> str:
    """Return the newest id of an environment's name; case, punctuation and version are ignored.

    Args:
        name: For example `cartpole`, `Cart-Pole` or `CartPole-v0`.
        namespace: Its ids are preferred; ids without a namespace come next, then ids of other namespaces.

    Raises:
        UnsupportedEnvironment: No id or several ids have the name; the message lists similar ids.
    """
    import gymnasium

    from algorithm.adapters.adapter import UnsupportedEnvironment

    if namespace:
        register_plugins(namespace)
    specs_by_name: dict[str, dict[str | None, list[EnvSpec]]] = defaultdict(lambda: defaultdict(list))
    for spec in gymnasium.registry.values():
        specs_by_name[_normalize(spec.name)][spec.namespace].append(spec)
    specs = specs_by_name.get(_normalize(re.sub(r"-v\d+$", "", name)), {})
    preferred: list[str | None] = [one for one in specs if one and _normalize(one) == _normalize(namespace or "")]
    found = [_find_newest(specs[one]) for one in preferred or ([None] if None in specs else specs)]
    if len(found) == 1:
        return found[0]
    close = get_close_matches(_normalize(name), specs_by_name, 5)
    similar = found or [_find_newest(specs) for key in close for specs in specs_by_name[key].values()]
    problem = "several Gymnasium environments have" if found else "no Gymnasium environment has"
    hint = f"; did you mean {', '.join(similar)}?" if similar else ""
    raise UnsupportedEnvironment(f"{problem} the name {name!r}{hint}")


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec of an id that env_type GYM opens, after the import of the module or plugin that registers it.

    Raises:
        UnsupportedEnvironment: The id is not registered, a package is missing, or another env_type opens it.
    """
    import gymnasium

    from algorithm.adapters.adapter import UnsupportedEnvironment
    from algorithm.adapters.env_errors import make_missing_error

    env_type = find_env_type(env_id)
    if env_type != "GYM":
        raise UnsupportedEnvironment(
            f"env_name {env_id!r} needs env_type {env_type}: set base_config.env_type to {env_type}"
        )
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        register_plugins(name.rpartition("/")[0])
        return gymnasium.spec(name)
    except (gymnasium.error.NamespaceNotFound, ModuleNotFoundError) as error:
        raise make_missing_error(env_id, error) from error
    except gymnasium.error.Error as error:
        is_unknown = isinstance(error, gymnasium.error.NameNotFound) and not module
        hint = f" If importing a module registers it, name the module: MODULE:{env_id}" if is_unknown else ""
        if full_id := add_module_prefix(env_id):
            hint = f" Its module registers it: use {full_id}"
        raise UnsupportedEnvironment(f"env_name {env_id!r}: {str(error).splitlines()[0]}{hint}") from error


def _find_newest(specs: list[EnvSpec]) -> str:
    """Return the id of the newest version."""
    return max(specs, key=lambda spec: spec.version or 0).id


def _normalize(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())
