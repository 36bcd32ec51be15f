"""Which environments Gymnasium knows, by what people call them."""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import get_close_matches

import gymnasium
from gymnasium.envs.registration import EnvSpec

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.env_plugins import register_plugins


def find_id(name: str, namespace: str | None = None) -> str:
    """The newest id that `name` means, whatever its case, underscores and version.

    An id of `namespace` comes before one of none, that before one of another. Raises UnsupportedEnvironment, listing
    near ones, where there is none or more than one.
    """
    if namespace:
        register_plugins(namespace)
    specs_by_name: dict[str, dict[str | None, list[EnvSpec]]] = defaultdict(lambda: defaultdict(list))
    for spec in gymnasium.registry.values():
        specs_by_name[_normalize(spec.name)][spec.namespace].append(spec)
    specs_by_namespace = specs_by_name.get(_normalize(re.sub(r"-v\d+$", "", name)), {})
    namespaces = list(specs_by_namespace)
    exact: list[str | None] = [
        place for place in namespaces if place and namespace and _normalize(place) == _normalize(namespace)
    ]
    selected = exact or [place for place in namespaces if place is None] or namespaces
    newest = [max(specs_by_namespace[place], key=lambda spec: spec.version or 0).id for place in selected]
    if len(newest) == 1:
        return newest[0]
    similar = newest or [
        max(specs, key=lambda spec: spec.version or 0).id
        for key in get_close_matches(_normalize(name), specs_by_name, 5)
        for specs in specs_by_name[key].values()
    ]
    problem = "several Gymnasium environments" if newest else "no Gymnasium environment"
    hint = f"; near it {'are' if len(similar) > 1 else 'is'} {', '.join(similar)}" if similar else ""
    raise UnsupportedEnvironment(f"{problem} of the name {name!r}{hint}")


def find_spec(env_name: str) -> EnvSpec:
    """Return the spec of an id that has been opened: its reward threshold, its limit of steps."""
    return gymnasium.spec(env_name.rpartition(":")[2])


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
