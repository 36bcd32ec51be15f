"""Settings: default_config.yaml, an environment's config.yaml, the command line; merged strictly and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from algorithm.config import yaml_text
from algorithm.config.environment_parameters import Parameter, read_parameters
from algorithm.config.registry import find_class
from algorithm.config.renamed_settings import find_renamed_setting
from algorithm.config.role_agents import read_agents
from algorithm.config.schema import BaseConfig, Goal, ReplayConfig
from algorithm.config.trees import MAPPINGS, Layer, Tree, iterate_paths, load_defaults, merge, read_yaml
from algorithm.config.typed import describe_validation_error, read_dataclass, read_section, respell
from algorithm.errors import UserError

# Sections that no role has of its own, but for the file of its network.
SHARED_SECTIONS = ("base_config", "reset_config", "ma_config", "goal")


@dataclass(frozen=True)
class Settings:
    """Everything a run is made from, typed; `tree` is the same as it is written to the run folder."""

    base: BaseConfig
    replay: ReplayConfig
    goal: Goal | None
    agent: Any  # the settings dataclass of the algorithm
    nn: Mapping[str, Any]
    auxiliaries: Mapping[str, Mapping[str, Any]]
    explorer: Mapping[str, Any]  # each one's keyword arguments, or its one argument
    reset: Mapping[str, Parameter]  # environment parameters
    roles: Mapping[str, Settings]  # of those that go by others
    agents: Mapping[str, str]  # the agent of each role that ma_config gives one
    tree: Tree
    command_line_layers: Sequence[Layer] = ()  # what the command line set

    def for_role(self, role: str) -> Settings:
        """Return the settings of this role, or of the agent of this name."""
        return self.roles.get(role, self)


def read_variant(path: Path, variant: str) -> Tree:
    """One variant of an environment's config.yaml, on top of `default` and whatever it inherits."""
    variants = _read_variants(path)
    if variant not in variants:
        raise UserError(f"{path}: no variant {variant!r}; there is {', '.join(map(str, variants))}")
    chain = [variant]
    while (parent := _find_parent(variants, chain[-1])) is not None:
        if parent in chain or parent not in variants:
            reason = "which inherits it" if parent in chain else "which is not there"
            raise UserError(f"{path}: {chain[-1]!r} inherits {parent!r}, {reason}")
        chain.append(parent)
    tree: Tree = {}
    for name in reversed(chain):
        tree = merge(tree, _drop_inherit(variants[name]))
    return tree


def read_own_variant(path: Path, variant: str) -> Tree:
    """Read the settings of one variant alone; none for a `default` that other variants share."""
    variants = _read_variants(path)
    return {} if variant == "default" and len(variants) > 1 else _drop_inherit(variants[variant])


def _read_variants(path: Path) -> dict[str, Tree]:
    variants = {str(name): tree if tree is not None else {} for name, tree in read_yaml(path).items()}
    for name, tree in variants.items():
        if not isinstance(tree, Mapping):
            raise UserError(f"{path}: the variant {name!r} is {tree!r}; expected a mapping of sections")
        if not isinstance(parent := tree.get("inherit"), str | None):
            raise UserError(f"{path}: {name!r} inherits {parent!r}; expected the name of a variant")
    return variants


def _find_parent(variants: Mapping[str, Tree], name: str) -> str | None:
    return variants[name].get("inherit", None if name == "default" or "default" not in variants else "default")


def _drop_inherit(tree: Tree) -> Tree:
    return {key: value for key, value in tree.items() if key != "inherit"}


def read_assignments(assignments: list[str], flag: str = "--set", section: str = "") -> Tree:
    """`section.key=value` strings that came with `flag` as a tree below `section`; values are YAML."""
    tree: Tree = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise UserError(f"{flag} {text}: expected {'key' if section else 'section.key'}=value")
        keys = f"{section}{path.replace('-', '_')}".split(".")
        if len(keys) > yaml_text.MAX_LEVELS:
            raise UserError(f"{flag} {text[:40]}...: a setting is at most {yaml_text.MAX_LEVELS} levels deep")
        try:
            leaf = yaml_text.load(value)
        except ValueError as error:
            raise UserError(f"{flag} {text}: the value cannot be read: {error}") from error
        for key in reversed(keys):
            leaf = {key: leaf}
        tree = merge(tree, leaf)
    return tree


def resolve(layers: list[Layer]) -> Settings:
    """Defaults under `layers`, each with the name of where it comes from. Raises UserError for what cannot be."""
    tree = load_defaults()
    known = list(iterate_paths(tree))
    for source, layer in layers:
        _check_keys(source, layer, known)
        tree = merge(tree, layer)
    if isinstance(tree["goal"], Mapping):  # a layer may set a part of what the one below it made null
        tree["goal"] = merge(load_defaults()["goal"], tree["goal"])
    for section in MAPPINGS:
        if not isinstance(tree[section], Mapping):
            raise UserError(f"{section} is {tree[section]!r}; it must be a mapping")
        if others := [name for name in tree[section] if not isinstance(name, str)]:
            raise UserError(f"{section}: the name {others[0]!r} is not text; put it in quotes")
    settings = _convert(tree, layers)
    agents, role_sections = read_agents(tree["ma_config"])
    roles = {role: _resolve_role(role, sections, tree, layers) for role, sections in role_sections.items()}
    return replace(settings, roles=roles, agents=agents)


def _convert(tree: Tree, layers: list[Layer]) -> Settings:
    """What `layers` made of the defaults. Raises UserError for what cannot be."""
    try:
        base = read_section(BaseConfig, tree["base_config"])
        replay = read_section(ReplayConfig, tree["replay_config"])
        goal = read_section(Goal, tree["goal"]) if tree["goal"] is not None else None
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers)) from error
    section = f"{base.algorithm.lower()}_config"
    kind = find_class("algorithm", base.algorithm).Settings
    if section in tree:
        tree = {**tree, section: respell(kind, tree[section])}
    agent = read_dataclass(kind, tree.get(section, {}), section, layers)
    for setting, name in [("env_type", base.env_type), ("runtime", base.runtime)]:
        find_class(setting, name)
    if base.max_step is None and getattr(agent, "learning_rate_schedule", None) == "linear":
        raise UserError(f"{section}.learning_rate_schedule is linear to 0 at base_config.max_step, which is not set")
    if len(tree["explorer"]) > 1:
        raise UserError(f"explorer: at most one, not {', '.join(tree['explorer'])}")
    reset = read_parameters(tree["reset_config"], base.max_step)
    return Settings(
        base, replay, goal, agent, tree["nn_config"], tree["auxiliaries"], tree["explorer"], reset, {}, {}, tree
    )


def _resolve_role(role: str, sections: Tree, tree: Tree, layers: list[Layer]) -> Settings:
    """Return the settings for one role, with its sections of `ma_config`.

    Raises UserError for what no role has of its own.
    """
    source = f"ma_config.{role}"
    _check_keys(source, sections, list(iterate_paths(load_defaults())))
    for path in iterate_paths(sections):
        if path.partition(".")[0] in SHARED_SECTIONS and path not in ("base_config", "base_config.nn"):
            raise UserError(
                f"{source}: {path} is the same for all roles; networks, algorithm and replay are a role's own"
            )
    return _convert(merge(tree, sections), [*layers, (source, sections)])


def _check_keys(source: str, layer: Tree, known: list[str], prefix: str = "") -> None:
    for key, value in layer.items():
        path = f"{prefix}{key}"
        if path not in known:
            instead = find_renamed_setting(path) or _suggest_setting(path, known)
            raise UserError(f"{source}: {path} is no setting{f'; {instead}' if instead else ''}")
        sections = any(other.startswith(f"{path}.") for other in known)
        if sections and not isinstance(value, Mapping) and not (path == "goal" and value is None):
            raise UserError(f"{source}: {path} is a section; its settings go below it, not {value!r}")
        if sections and value is not None:
            _check_keys(source, value, known, f"{path}.")


def _suggest_setting(path: str, known: list[str]) -> str | None:
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    similar = get_close_matches(path, [other for other in known if other.rpartition(".")[0] == section], 1)
    found = elsewhere or similar or get_close_matches(path, known, 1)
    return f"did you mean {found[0]}?" if found else None
