"""Environments that installed packages offer to Gymnasium: entry points of the group `gymnasium.envs`, as MinAtar's."""

from __future__ import annotations

from importlib.metadata import entry_points

import gymnasium


def register_plugins(namespace: str) -> None:
    """Let Gymnasium know the ids of `namespace`, whatever its case, where an installed package has them."""
    for plugin in entry_points(group="gymnasium.envs"):
        if plugin.name.casefold() == namespace.casefold() and not _is_registered(plugin.name):
            plugin.load()()


def _is_registered(namespace: str) -> bool:
    return any(spec.namespace == namespace for spec in gymnasium.registry.values())
