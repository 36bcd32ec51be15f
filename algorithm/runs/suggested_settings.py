"""Settings to begin with for an environment that has no folder: those that `--init` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from algorithm.adapters.adapter import UnsupportedObservations
from algorithm.config.loader import Settings, Tree, merge, resolve
from algorithm.config.registry import find_class
from algorithm.runs.make_env import make_env_config
from algorithm.specs import Role

# For unknown environments: rewards of any size, and for continuous actions the settings that learn well in `envs`.
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
EVALUATIONS = 20  # in the course of a run that has no goal
IMAGE_SIDE = 84  # pixels of an image that is learned from; larger ones are resized
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
        roles = _read_roles(resolve([(source, tree)]), make_env)
    except UnsupportedObservations as error:
        ignored = [*tree["base_config"].get("ignore_observations", []), *error.names]
        return open_environment(source, merge(tree, {"base_config": {"ignore_observations": ignored}}), make_env)
    wrappers = _image_wrappers(roles) if tree["base_config"]["env_type"] == "GYM" else []
    if wrappers and "env_wrappers" not in tree["base_config"]:
        return open_environment(source, merge(tree, {"base_config": {"env_wrappers": wrappers}}), make_env)
    return roles, tree


def _read_roles(settings: Settings, make_env: str | Callable[..., Any] | None) -> Mapping[str, Role]:
    """Open the environment once and return its roles."""
    opener = make_env or settings.base.env_name or ""
    adapter = find_class("env_type", settings.base.env_type)(make_env_config(settings, opener, 1))
    try:
        adapter.reset(settings.base.seed)
        return adapter.roles
    finally:
        adapter.close()


def _image_wrappers(roles: Mapping[str, Role]) -> list:
    """Return the wrappers that turn a large color image into a gray one of `SIDE` pixels; none for anything else."""
    specs = next(iter(roles.values())).obs_specs
    spec = next(iter(specs.values()))
    channels, *sides = spec.shape if len(spec.shape) == 3 else (0, 0)
    if len(specs) > 1 or channels != 3 or spec.high != 255 or min(sides) < IMAGE_SIDE:
        return []
    return [RESIZE] * (max(sides) > IMAGE_SIDE) + [GRAYSCALE]


def add_suggestions(opened: Tree, roles: Mapping[str, Role], threshold: float | None) -> Tree:
    """Return `opened` on top of suggestions: a goal or evaluations, and the algorithm's section."""
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
