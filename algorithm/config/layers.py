"""The layers of settings of a run, merged, and their sections that need no algorithm, whose class imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from algorithm.config.registry import make_agent_defaults
from algorithm.config.schema import describe_validation_error, read_section
from algorithm.config.sections import SECTIONS
from algorithm.config.trees import MAPPINGS, Layer, Tree, iterate_paths, load_defaults, merge
from algorithm.config.unknown_settings import check_keys
from algorithm.errors import UserError


def merge_layers(layers: Sequence[Layer]) -> Tree:
    """Return the defaults with `layers` on top. Raises UserError for an unknown key, and for no mapping of names."""
    algorithms = [layer["base_config"]["algorithm"] for _, layer in layers if _names_algorithm(layer)]
    tree = load_defaults() | (make_agent_defaults(algorithms[-1]) if algorithms else {})
    known = list(iterate_paths(tree))
    for source, layer in layers:
        check_keys(source, layer, known)
        tree = merge(tree, name_host(layer))
    if isinstance(tree["goal"], Mapping):  # a layer may set a part of a goal that the layer below set to null
        tree["goal"] = merge(load_defaults()["goal"], tree["goal"])
    for section in MAPPINGS:
        if not isinstance(tree[section], Mapping):
            raise UserError(f"{section} is {tree[section]!r}; it must be a mapping")
        if others := [name for name in tree[section] if not isinstance(name, str)]:
            raise UserError(f"{section}: the name {others[0]!r} is not text; put it in quotes")
    return tree


def name_host(layer: Tree) -> Tree:
    """Return a layer in which runtime RAY, the former name of a cluster on Ray, is runtime CLUSTER on the host ray."""
    base = layer.get("base_config")
    if not isinstance(base, Mapping) or str(base.get("runtime")).casefold() != "ray":
        return layer
    return merge(layer, {"base_config": {"runtime": "CLUSTER"}, "cluster_config": {"host": "ray"}})


def read_sections(tree: Tree, layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the typed sections `SECTIONS` of a merged tree, by name. Raises UserError for an invalid value."""
    try:
        return {  # only the goal may be null
            name: None if tree[name] is None and name == "goal" else read_section(section, tree[name])
            for name, section in SECTIONS.items()
        }
    except ValidationError as error:
        raise UserError(describe_validation_error(error, list(layers))) from error


def _names_algorithm(layer: Tree) -> bool:
    """Return whether a layer sets the algorithm to text; other values are rejected later."""
    base = layer.get("base_config")
    return isinstance(base, Mapping) and isinstance(base.get("algorithm"), str)
