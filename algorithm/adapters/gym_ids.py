"""Which environments Gymnasium knows, by what people call them."""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import get_close_matches

import gymnasium
from gymnasium.envs.registration import EnvSpec

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.env_plugins import register


def find_id(name: str, namespace: str | None = None) -> str:
    """The newest id that `name` means, whatever its case, underscores and version.

    An id of `namespace` comes before one of none, that before one of another. Raises UnsupportedEnvironment, listing
    near ones, where there is none or more than one.
    """
    if namespace:
        register(namespace)
    named: dict[str, dict[str | None, list[EnvSpec]]] = defaultdict(lambda: defaultdict(list))
    for spec in gymnasium.registry.values():
        named[_plain(spec.name)][spec.namespace].append(spec)
    found = named.get(_plain(re.sub(r"-v\d+$", "", name)), {})
    places = list(found)
    own: list[str | None] = [place for place in places if place and namespace and _plain(place) == _plain(namespace)]
    chosen = own or [place for place in places if place is None] or places
    newest = [max(found[place], key=lambda spec: spec.version or 0).id for place in chosen]
    if len(newest) == 1:
        return newest[0]
    near = newest or [
        max(specs, key=lambda spec: spec.version or 0).id
        for key in get_close_matches(_plain(name), named, 5)
        for specs in named[key].values()
    ]
    how = "several Gymnasium environments" if newest else "no Gymnasium environment"
    there = f"; near it {'are' if len(near) > 1 else 'is'} {', '.join(near)}" if near else ""
    raise UnsupportedEnvironment(f"{how} of the name {name!r}{there}")


def registered(env_name: str) -> EnvSpec:
    """Return the spec of an id that has been opened: its reward threshold, its limit of steps."""
    return gymnasium.spec(env_name.rpartition(":")[2])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
