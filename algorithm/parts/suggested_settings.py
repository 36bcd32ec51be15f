"""Initial settings for an environment that has no folder, which the command init writes and `train` uses.

The spaces of the environment, its limit of steps per episode and a short play of random actions determine them by the
rules in `suggestion_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from algorithm.adapters.adapter import UnsupportedObservations
from algorithm.config.loader import resolve
from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig
from algorithm.config.yaml_layers import Tree, iterate_paths, merge, nest
from algorithm.parts.env_probe import EnvProbe, probe_environment
from algorithm.parts.make_env import make_env_config, read_roles
from algorithm.parts.suggestion_rules import EVALUATIONS, RULES, Facts, Rule, choose_algorithm
from algorithm.specs import Role

IMAGE_SIDE = 84  # pixels; larger images are resized to this height and width
RESIZE = {"gymnasium.wrappers:ResizeObservation": {"shape": [IMAGE_SIDE, IMAGE_SIDE]}}
GRAYSCALE = "gymnasium.wrappers:GrayscaleObservation"


def open_environment(
    source: str, tree: Tree, make_env: str | Callable[..., Any] | None = None
) -> tuple[Mapping[str, Role], Tree]:
    """Return the roles of an environment, and `tree` with the settings that are needed to observe it.

    Args:
        source: the origin of the settings, for messages.
        tree: settings that name the environment.
        make_env: id or function that opens the environment; None for `base_config.env_name`.
    """
    try:
        roles = _read_roles(resolve([(source, tree)]).base, make_env)
    except UnsupportedObservations as error:
        ignored = [*tree["base_config"].get("ignore_observations", []), *error.names]
        return open_environment(source, merge(tree, {"base_config": {"ignore_observations": ignored}}), make_env)
    wrappers = _image_wrappers(roles) if tree["base_config"]["env_type"] == "GYM" else []
    if wrappers and "env_wrappers" not in tree["base_config"]:
        return open_environment(source, merge(tree, {"base_config": {"env_wrappers": wrappers}}), make_env)
    return roles, tree


def _read_roles(base: BaseConfig, make_env: str | Callable[..., Any] | None) -> Mapping[str, Role]:
    """Open the environment once and return its roles."""
    config = make_env_config(base)
    return read_roles(
        find_class("env_type", base.env_type), replace(config, name=make_env or config.name, n_envs=1), base.seed
    )


def _image_wrappers(roles: Mapping[str, Role]) -> list:
    """Return the wrappers that turn a large color image into a gray image of `IMAGE_SIDE` pixels; otherwise none."""
    specs = next(iter(roles.values())).obs_specs
    spec = next(iter(specs.values()))
    channels, *sides = spec.shape if len(spec.shape) == 3 else (0, 0)
    if len(specs) > 1 or channels != 3 or spec.high != 255 or min(sides) < IMAGE_SIDE:
        return []
    return [RESIZE] * (max(sides) > IMAGE_SIDE) + [GRAYSCALE]


@dataclass(frozen=True, kw_only=True)
class SuggestedSettings:
    """Settings for an environment.

    Attributes:
        tree: the given settings, and suggested ones for those that are not given.
        reasons: the reasons of the suggested settings by path.
        notes: lines for the user.
    """

    tree: Tree
    reasons: Mapping[str, str]
    notes: tuple[str, ...] = ()


def suggest_settings(
    opened: Tree,
    roles: Mapping[str, Role],
    threshold: float | None,
    make_env: str | Callable[..., Any] | None = None,
) -> SuggestedSettings:
    """Play random actions in an environment and return settings for it.

    Args:
        opened: the given settings, and those that `open_environment` has added.
        roles: the roles of the environment.
        threshold: the return at which the environment counts as solved, if one is known.
        make_env: id or function that opens the environment; None for `base_config.env_name`.
    """
    probe = _probe(resolve([("suggested settings", opened)]).base, make_env)
    facts = Facts(given=opened, roles=roles, probe=probe)
    if probe is None or (probe.is_complete and probe.failure is None):
        return add_suggestions(facts, threshold)
    if probe.failure is None:
        note = f"the settings consider only {probe.steps} random actions, since the environment is slow"
    else:
        facts = replace(facts, probe=None)
        note = f"the settings do not consider rewards and episodes: {probe.failure}, during a play of random actions"
    return replace(add_suggestions(facts, threshold), notes=(note,))


def _probe(base: BaseConfig, make_env: str | Callable[..., Any] | None) -> EnvProbe | None:
    """Play random actions; None for an environment that is a separate program."""
    adapter_class = find_class("env_type", base.env_type)
    if adapter_class.starts_programs:
        return None
    config = make_env_config(base)
    return probe_environment(adapter_class, replace(config, name=make_env or config.name, n_envs=1), base.seed)


def add_suggestions(facts: Facts, threshold: float | None) -> SuggestedSettings:
    """Return the settings that the rules suggest, with the given ones on top."""
    suggested: Tree = {}
    reasons: dict[str, str] = {}

    def apply(rule: Rule) -> None:
        nonlocal suggested
        for suggestion in rule(facts):
            suggested = merge(suggested, nest(suggestion.path, suggestion.value))
            reasons[suggestion.path] = suggestion.reason

    given = facts.given
    if "algorithm" not in given["base_config"]:
        apply(choose_algorithm)
        facts = replace(facts, given=merge(suggested, given))
    for rule in RULES.get(facts.base.algorithm.upper(), ()):
        apply(rule)
    tree = merge({"goal": {"return": threshold}, **suggested}, given)
    if tree["goal"] is None or tree["goal"]["return"] is None:
        every = max(1, (facts.base.max_step or facts.base.save_every or 1) // EVALUATIONS)
        tree = merge({"base_config": {"evaluate_every": every}}, tree)
    kept = {path: reason for path, reason in reasons.items() if reason and path not in set(iterate_paths(given))}
    return SuggestedSettings(tree=tree, reasons=kept)
