"""Initial settings for an environment that has no folder, which `--init` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from algorithm.adapters.adapter import UnsupportedObservations
from algorithm.config.loader import Tree, merge, resolve
from algorithm.config.registry import find_class
from algorithm.config.schema import BaseConfig
from algorithm.runs.make_env import make_env_config, read_roles
from algorithm.specs import Role

# For unknown environments: settings for rewards of any size, and the settings that suit continuous actions in `envs`.
SUGGESTED_SETTINGS: Tree = {"reward_normalization": "return_std"}
CONTINUOUS_SETTINGS: Tree = {
    "std": "learned",
    "std_init": 0.5,
    "std_min": 0.2,
    "average_policy_decay": 0.995,
    "importance_clip": 5.0,
    "batch_size": 32,
    "replay_ratio": 8.0,
}
EVALUATIONS = 20  # number of evaluations in a run without a goal
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


def add_suggestions(opened: Tree, roles: Mapping[str, Role], threshold: float | None) -> Tree:
    """Return the suggested settings (a goal or evaluations, the algorithm's section) with `opened` on top."""
    settings = resolve([("--init", opened)])
    base = settings.base
    suggested: Tree = {"goal": {"return": threshold}}
    if base.algorithm.casefold() == "acer":
        continuous = any(role.action_spec.continuous for role in roles.values())
        suggested["acer_config"] = SUGGESTED_SETTINGS | (CONTINUOUS_SETTINGS if continuous else {})
    elif base.algorithm.casefold() == "sac":  # one update for each env step
        suggested["sac_config"] = {"replay_ratio": float(base.n_envs * settings.agent.rollout_length)}
    goal = merge(suggested, opened)["goal"]
    if goal is None or goal["return"] is None:
        suggested["base_config"] = {"evaluate_every": max(1, (base.max_step or base.save_every or 1) // EVALUATIONS)}
    return merge(suggested, opened)
