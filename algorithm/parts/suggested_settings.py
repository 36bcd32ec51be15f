"""Suggested settings for an environment: new runs use them where none are given, and the command init writes them.

The spaces of the environment, its limit of steps per episode and a short play of random actions determine them by
rules, each of which is a function that yields settings with their reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec as find_module
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, EnvironmentCrashed, SimulatorError, UnsupportedObservations
from algorithm.adapters.gym_ids import find_spec
from algorithm.adapters.spaces import OBS
from algorithm.config.loader import Settings, is_auto, resolve
from algorithm.config.registry import AGENTS, find_class, get_agent_section
from algorithm.config.sections import BaseConfig
from algorithm.config.yaml_layers import (
    Tree,
    find_value,
    format_value,
    iterate_paths,
    iterate_settings,
    merge,
    nest,
    parse_yaml,
    read_entries,
)
from algorithm.networks.default_network import has_images, has_large_images, is_table
from algorithm.parts.make_env import check_supported, describe_missing_limit, find_episode_limit, make_env_config
from algorithm.specs import ACTION_MASK, Role
from algorithm.training.invalid_values import RunningEpisodes

MAX_STEPS = 1000  # random actions in one environment
MAX_SECONDS = 30.0  # wall time after which the play of a slow environment ends
MIN_STEPS = 100  # random actions below which nothing is concluded
COLOR_SIDE = 84  # pixels of the shorter side from which color images become small and gray
IMAGE_SIDE = 42  # their height and width then, in pixels: a quarter of the arithmetic of 84 x 84
RESIZE = {"gymnasium.wrappers:ResizeObservation": {"shape": [IMAGE_SIDE, IMAGE_SIDE]}}
GRAYSCALE = "gymnasium.wrappers:GrayscaleObservation"
SMALL_IMAGES = "small images need a quarter of the arithmetic of 84 x 84 pixels"
# Reasons of the settings that are needed to observe an environment.
REQUIRED = {
    "base_config.ignore_observations": "no network can read them",
    "base_config.env_args": SMALL_IMAGES,
    "base_config.env_wrappers": SMALL_IMAGES,
}
SCALED_RETURN = 10.0  # discounted return after scaling if every reward has the usual size
SCALED_REWARD = 0.1  # usual size of a reward after scaling, with the default gamma
# Weight of the entropy bonus, as a fraction of the usual size of a scaled reward: with a critic that generalizes, with
# a table, and while the rewards do not depend on the actions yet.
ENTROPY, TABLE_ENTROPY, EXPLORING_ENTROPY = 0.01, 0.03, 0.1
LONG_EPISODE = 400  # limit of steps per episode from which rewards further in the future count
LONG_GAMMA = 0.995
MAX_GAMMA = 0.999  # discount factor above which returns do not grow further, since episodes end
RARE_REWARDS = 0.1  # fraction of rewards other than 0 below which their mean size means little
EVALUATE_EVERY = "base_config.evaluate_every"
EVALUATIONS = 20  # number of evaluations in a run without a goal, or with an explorer
LATEST_START, MAX_CAPACITY = 5000, 1_000_000  # of SAC, in env steps
TABLE_NOISE = 0.1  # largest fraction of random actions with a table
REPETITION = 0.95  # highest probability of a repeated action: it lasts 20 steps on average
MISSING_LIMIT = 1000  # limit of steps for episodes that may never end

# Setting, value and reason of a suggestion; a setting without a section is one of the algorithm. A reason "" is for a
# setting that its meaning explains.
Suggestion = tuple[str, Any, str]
MakeEnv = str | Callable[..., Any] | None  # id or function that opens the environment; None: `base_config.env_name`
RECIPES = Path(__file__).with_name("recipes.yaml")


@dataclass(frozen=True, kw_only=True)
class RandomPlay:
    """A record of random actions in one environment; without rewards if nothing can be concluded from them."""

    rewards: np.ndarray  # [n], of all agents, in the order in which they were received
    episode_lengths: tuple[int, ...] = ()  # of the episodes that have ended, in steps
    terminations: int = 0  # number of episodes that ended by a termination
    steps: int = MAX_STEPS  # number of random actions
    failure: str | None = None  # why nothing can be concluded, in one line; None if the environment did not fail

    @property
    def is_complete(self) -> bool:
        """Whether `MAX_STEPS` actions were played; a slow environment has fewer."""
        return self.steps >= MAX_STEPS


def play_randomly(make_adapter: Callable[[EnvConfig], Adapter], config: EnvConfig, seed: int) -> RandomPlay:
    """Play `MAX_STEPS` random actions, or fewer in `MAX_SECONDS`, and return what was observed.

    A failure of the environment, or a reward that is NaN or infinite, ends the play and is recorded. The seed is that
    of the environment and of the actions.
    """
    rewards, episode_lengths, terminations, steps, failure = [np.zeros(0, np.float32)], [], 0, 0, None
    by_role: dict[str, RunningEpisodes] = {}
    rng = np.random.default_rng(seed)
    try:
        with closing(make_adapter(config)) as adapter:
            deadline = time.monotonic() + MAX_SECONDS
            tick = adapter.reset(seed)
            while True:
                for role, step in tick.items():
                    lanes = adapter.roles[role].lanes
                    episodes = by_role.setdefault(role, RunningEpisodes(role, lanes, ()))
                    if lanes > len(episodes.lengths):
                        episodes.grow(lanes)
                    follows_action = episodes.lengths[step.lane] > 0
                    rewards.append(step.reward[follows_action].copy())
                    terminations += int((follows_action & ~step.alive).sum())
                    episode_lengths += [length for _, _, length in episodes.add(step)]
                    if not np.isfinite(step.reward).all():
                        raise EnvironmentCrashed(f"a reward of role {role!r} is NaN or infinite after {steps} actions")
                if steps == MAX_STEPS or (steps and time.monotonic() > deadline):
                    break
                specs = {role: adapter.roles[role].action_spec for role in tick}
                tick = adapter.step(
                    {
                        role: specs[role].sample(rng, len(step.lane), step.obs.get(ACTION_MASK))
                        for role, step in tick.items()
                    }
                )
                steps += 1
    except SimulatorError as error:
        failure = " ".join(str(error).split())
    if failure is None and steps < MIN_STEPS:
        failure = f"the environment executed only {steps} actions in {MAX_SECONDS:g} s"
    return RandomPlay(
        rewards=np.concatenate(rewards[:1] if failure else rewards),
        episode_lengths=tuple(episode_lengths),
        terminations=terminations,
        steps=steps,
        failure=failure,
    )


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """A record of what is known about an environment, which the rules read."""

    given: Tree  # the settings that the user gives, and those that are needed to observe the environment
    roles: Mapping[str, Role]
    play: RandomPlay
    has_network: bool = False  # whether the user gives a network

    @cached_property
    def settings(self) -> Settings:
        """The given settings with the defaults of all others."""
        return resolve([("suggested settings", self.given)])

    @property
    def given_to_agent(self) -> Tree:
        """The given settings of the algorithm."""
        return self.given.get(self.settings.agent_section, {})

    @property
    def evaluation_interval(self) -> int:
        """The env steps between two of `EVALUATIONS` evaluations."""
        base = self.settings.base
        return max(1, (base.max_step or base.save_every or 1) // EVALUATIONS)

    @property
    def has_continuous(self) -> bool:
        """Whether an action has a continuous dimension."""
        return any(role.action_spec.continuous for role in self.roles.values())

    @property
    def has_discrete(self) -> bool:
        """Whether an action has a discrete branch."""
        return any(role.action_spec.branches for role in self.roles.values())

    @property
    def has_images(self) -> bool:
        """Whether an observation is an image."""
        return any(has_images(role) for role in self.roles.values())

    @property
    def is_table(self) -> bool:
        """Whether all observations are those of a table."""
        return all(map(is_table, self.roles.values()))

    @property
    def repeats_actions(self) -> bool:
        """Whether actions are to be repeated, since random ones made no difference: all rewards were the same.

        Less than an episode is not enough to see that, unless the play is complete. An explorer of the user is kept.
        """
        play = self.play
        has_seen_enough = play.is_complete or play.episode_lengths
        made_difference = play.terminations or len(np.unique(play.rewards)) != 1
        return not ("explorer" in self.given or self.has_continuous or made_difference or not has_seen_enough)


def choose_algorithm(result: ProbeResult) -> Iterator[Suggestion]:
    """Suggest SAC for continuous actions and ACER for all others, unless a section of an algorithm is given."""
    choice = ("SAC", "SAC needs the fewest env steps for continuous actions")
    if result.has_discrete or result.has_images:
        choice = ("ACER", "ACER learns several times from each step, with actions of every kind")
    given = [(name, "") for name in AGENTS if result.given.get(get_agent_section(name))]
    yield "base_config.algorithm", *[*given, choice][0]


def limit_episodes(result: ProbeResult) -> Iterator[Suggestion]:
    """Limit the steps of episodes for which no limit is registered, if random actions never end one."""
    play, missing = result.play, describe_missing_limit(result.settings.base)
    if missing and play.is_complete and len(play.rewards) and not play.episode_lengths:
        reason = f"no limit is registered, and no episode ended in {len(play.rewards):,} random steps"
        yield "base_config.max_step_each_iter", MISSING_LIMIT, reason


def look_ahead(result: ProbeResult) -> Iterator[Suggestion]:
    """Raise the discount factor if the limit of steps per episode is long."""
    limit = find_episode_limit(result.settings.base) or 0
    if limit >= LONG_EPISODE and "gamma" not in result.given_to_agent and not result.has_images:
        yield "gamma", LONG_GAMMA, f"with episodes of up to {limit:,} steps, rewards of the next 200 steps count"


def scale_rewards(result: ProbeResult) -> Iterator[Suggestion]:
    """Scale rewards so that returns have the size `SCALED_RETURN`; divide rare or unknown rewards by their returns."""
    play, clip = result.play, result.settings.agent.reward_clip or np.inf
    if {"reward_scale", "reward_normalization"} & set(result.given_to_agent):
        return
    n, sizes = len(play.rewards), np.abs(play.rewards[play.rewards != 0]).clip(max=clip)
    if n and len(sizes) / n >= RARE_REWARDS:
        size = float(np.median(sizes))  # a mean would be the size of a few exceptional rewards, as at the end
        reason = f"rewards of about {_round(size, 2):g}; discounted returns of up to {SCALED_RETURN:g}"
        yield "reward_scale", _round(_compute_scaled_reward(result) / size, 1), reason
    else:
        reason = f"{len(sizes)} of {n:,} random actions were rewarded" if n else "the size of rewards is not known"
        yield "reward_normalization", "return_std", reason


def weigh_entropy(result: ProbeResult) -> Iterator[Suggestion]:
    """Weigh the entropy bonus in proportion to the scaled rewards."""
    if result.has_images or result.has_continuous:
        return
    is_scaled = any(name == "reward_scale" for name, _, _ in scale_rewards(result))
    scaled_reward = _compute_scaled_reward(result) if is_scaled else SCALED_REWARD
    fraction, reason = ENTROPY, "small compared with the scaled rewards, so that the policy may become certain"
    if result.is_table:
        fraction, reason = TABLE_ENTROPY, "a table does not carry over what it learned, and has to try every action"
    if result.repeats_actions:
        fraction, reason = EXPLORING_ENTROPY, "large, so that the policy stays random until rewards differ"
    yield "entropy_coef", _round(fraction * scaled_reward, 1), reason


def _compute_scaled_reward(result: ProbeResult) -> float:
    """Return the usual size of a scaled reward, with the discount factor that is suggested, given or the default."""
    gamma = next((value for _, value, _ in look_ahead(result)), result.settings.agent.gamma)
    return SCALED_RETURN * (1 - min(gamma, MAX_GAMMA))


def explore(result: ProbeResult) -> Iterator[Suggestion]:
    """Repeat actions in some environments if random ones made no difference, or take random ones with a table.

    With a table, the policy may be certain before the critic has seen enough of rare rewards, and then never tries
    other actions.
    """
    if result.repeats_actions:
        reason = (
            f"all {len(result.play.rewards):,} random actions had the same reward; an action that is repeated leads "
            "further. The first environment repeats none, the last one with this probability"
        )
        yield "explorer.action_repeat", [0.0, REPETITION], reason
        reason = "training episodes contain repeated actions, so that their returns are lower"
        yield EVALUATE_EVERY, result.evaluation_interval, reason
    elif result.is_table and "explorer" not in result.given:
        reason = (
            "a table knows nothing of actions that were not tried. The first environment has no random actions, the "
            "last one this fraction"
        )
        yield "explorer.action_noise", [0.0, TABLE_NOISE], reason
        yield EVALUATE_EVERY, result.evaluation_interval, "training episodes contain random actions"


def evaluate_without_goal(result: ProbeResult) -> Iterator[Suggestion]:
    """Suggest evaluations during the run, of which one without a goal has none otherwise."""
    yield EVALUATE_EVERY, result.evaluation_interval, f"{EVALUATIONS} evaluations in a run without a goal"


def adapt_acer(result: ProbeResult) -> Iterator[Suggestion]:
    """Suggest the settings of ACER for the kind of the task."""
    if result.has_continuous:
        kind = "continuous"
    elif result.has_images:
        kind = "images" if any(map(has_large_images, result.roles.values())) else "small_images"
    else:
        kind = "tables" if result.is_table else "vectors"
    for path, value, reason in read_recipe(f"acer_{kind}"):
        if result.settings.base.max_step is not None or not path.endswith("_schedule"):  # a run without an end has none
            yield path, value, reason


def read_recipe(name: str) -> Iterator[Suggestion]:
    """Yield the settings of a recipe, with their reasons."""
    for entry in read_entries(RECIPES):
        recipe, _, path = entry.path.partition(".")
        if recipe == name and entry.default is not None:
            yield path, parse_yaml(entry.default), entry.meaning


def adapt_sac(result: ProbeResult) -> Iterator[Suggestion]:
    """Suggest one update for each env step; with continuous actions alone, learning rates that fall in the run.

    Without a network or an explorer of the user, these are part of the recipe with residual networks.
    """
    settings, n_envs = result.settings, result.settings.base.n_envs
    max_step, is_continuous = settings.base.max_step, not (result.has_discrete or result.has_images)
    if "n_envs" not in result.given["base_config"] and not result.has_discrete:
        n_envs = 1
        yield "base_config.n_envs", 1, "SAC learns after each step of one environment"
    yield "replay_ratio", float(n_envs * settings.agent.rollout_length), "one update for each env step"
    if max_step is None or not is_continuous:
        return
    is_plain = result.has_network or bool(result.given.get("explorer"))
    for path, value, reason in read_recipe("sac_decaying" if is_plain else "sac_continuous"):
        is_removed = path.startswith("explorer.") and "explorer" in result.given  # null: the user wants none
        if not is_removed and (settings.agent.use_auto_alpha or "alpha" not in path):
            yield path, value, reason
    if not is_plain:
        yield "replay_config.capacity", min(max_step, MAX_CAPACITY), "all steps of the run, but at most a million"
        for name in ("random_steps", "learning_starts"):
            start = max(1, min(LATEST_START, max_step // 20))
            yield name, start, f"a twentieth of max_step, but at most {LATEST_START:,}"


def start_early(result: ProbeResult) -> Iterator[Suggestion]:
    """Start to learn after a tenth of a short run, which would otherwise learn little or nothing."""
    max_step = result.settings.base.max_step
    if max_step is not None and max_step < 10 * result.settings.agent.learning_starts:
        yield "learning_starts", max(1, max_step // 10), "a tenth of max_step"


def _round(value: float, digits: int) -> float:
    """Return a positive number rounded to a number of significant digits."""
    return round(value, digits - 1 - floor(log10(value)))


# The rules for each algorithm, in their order.
RULES: Mapping[str, Sequence[Callable[[ProbeResult], Iterator[Suggestion]]]] = {
    "ACER": (limit_episodes, adapt_acer, look_ahead, scale_rewards, weigh_entropy, explore),
    "SAC": (limit_episodes, start_early, adapt_sac),
    "REACTOR": (limit_episodes, look_ahead, start_early),
    "A2C": (limit_episodes, look_ahead),
    "PPO": (limit_episodes, look_ahead),
    "POCA": (limit_episodes, look_ahead),
}


@dataclass(frozen=True, kw_only=True)
class SuggestedSettings:
    """Settings for an environment, below and on top of the given ones."""

    suggestions: Tree  # for settings that are not given
    required: Tree  # on top of the given ones: observations that cannot be read, and the algorithm that was chosen
    given: Tree
    reasons: Mapping[str, str]  # of the suggestions that are not given, by path; "" if its meaning explains a setting
    roles: Mapping[str, Role]
    notes: Sequence[str] = ()  # lines for the user

    def complete(self, given: Tree) -> Tree:
        """Return given settings, or a part of them, with the suggestions for all others."""
        return merge(self.suggestions, given, self.required)

    @property
    def tree(self) -> Tree:
        """The given settings with the suggestions for all others."""
        return self.complete(self.given)

    def describe(self) -> Iterator[str]:
        """Yield a line for each suggestion that is not given, with its reason."""
        tree, reasons = self.tree, {path: REQUIRED.get(path, "") for path, _ in iterate_settings(self.required)}
        reasons |= self.reasons
        for path, reason in reasons.items():
            yield f"  {path}: {format_value(find_value(tree, path))}" + f"  ({reason})" * bool(reason)


def suggest_settings(source: str, tree: Tree, make_env: MakeEnv = None, has_network: bool = False) -> SuggestedSettings:
    """Open an environment, play random actions, and return settings for it.

    Args:
        source: the origin of the settings, for messages.
        tree: the given settings, which name the environment.
        make_env: what opens the environment.
        has_network: whether the user gives a network.
    """
    # A network of the user receives images of the size that the given settings have.
    roles, required = (_open_environment if has_network else _open_with_small_images)(source, tree, make_env, {})
    given = merge(tree, required)
    settings = resolve([(source, given)])
    play = play_randomly(*_choose_adapter(settings, make_env))
    notes = []
    if play.failure is not None:
        notes = [f"the settings do not consider rewards and episodes: {play.failure}, during a play of random actions"]
    elif not play.is_complete:
        notes = [f"the settings consider only {play.steps} random actions, since the environment is slow"]
    threshold = None if callable(make_env) else _find_threshold(settings.base)
    result = ProbeResult(given=given, roles=roles, play=play, has_network=has_network)
    suggested = add_suggestions(result, threshold)
    return replace(suggested, required=merge(required, suggested.required), notes=notes)


def _find_threshold(base: BaseConfig) -> float | None:
    """Return the return of a solved environment that Gymnasium registers; None with shorter episodes than those."""
    if base.env_type.upper() != "GYM":
        return None
    spec, limit = find_spec(base.env_name or ""), find_episode_limit(base)
    is_shorter = limit is not None and limit < (spec.max_episode_steps or 0)
    return None if is_shorter else spec.reward_threshold


def add_suggestions(result: ProbeResult, threshold: float | None) -> SuggestedSettings:
    """Return the settings that the rules suggest; `threshold` is the return of a solved environment, if it is known."""
    given, suggested, required = result.given, {"goal": {"return": threshold}}, {}
    reasons: dict[str, str] = {}

    def apply(rule: Callable[[ProbeResult], Iterator[Suggestion]]) -> None:
        nonlocal suggested
        for name, value, reason in rule(result):
            path = name if "." in name else f"{result.settings.agent_section}.{name}"
            suggested = merge(suggested, nest(path, value))
            reasons[path] = reason

    if is_auto(given):
        apply(choose_algorithm)
        required = {"base_config": {"algorithm": suggested["base_config"]["algorithm"]}}
        result = replace(result, given=merge(given, required))
    for rule in RULES.get(result.settings.base.algorithm.upper(), ()):
        apply(rule)
    goal = merge(suggested, given)["goal"]
    if (goal is None or goal["return"] is None) and EVALUATE_EVERY not in reasons:
        apply(evaluate_without_goal)
    given_paths = set(iterate_paths(given)) - set(iterate_paths(required))
    shown = {path: reason for path, reason in reasons.items() if path not in given_paths}
    return SuggestedSettings(suggestions=suggested, required=required, given=given, reasons=shown, roles=result.roles)


def _open_with_small_images(
    source: str, tree: Tree, make_env: MakeEnv, needed: Tree
) -> tuple[Mapping[str, Role], Tree]:
    """Open an environment as `_open_environment` does; large images are small and gray unless `tree` decides that."""
    base = resolve([(source, tree)]).base
    env_type = base.env_type.upper()
    if env_type == "ATARI" and "screen_size" not in base.env_args:
        needed = merge(needed, nest("base_config.env_args.screen_size", IMAGE_SIDE))
    roles, needed = _open_environment(source, tree, make_env, needed)
    if env_type == "GYM" and "env_wrappers" not in tree["base_config"] and _is_large_color_image(roles):
        needed = merge(needed, nest("base_config.env_wrappers", [RESIZE, GRAYSCALE]))
        return _open_environment(source, tree, make_env, needed)
    return roles, needed


def _open_environment(source: str, tree: Tree, make_env: MakeEnv, needed: Tree) -> tuple[Mapping[str, Role], Tree]:
    """Return the roles of an environment, and `needed` with all settings that are needed to observe it."""
    settings = resolve([(source, tree), (source, needed)])
    try:
        make_adapter, config, seed = _choose_adapter(settings, make_env)
        with closing(make_adapter(config)) as adapter:
            adapter.reset(seed)
            return adapter.roles, needed
    except UnsupportedObservations as error:
        ignored = {"base_config": {"ignore_observations": [*settings.base.ignore_observations, *error.names]}}
        return _open_environment(source, tree, make_env, merge(needed, ignored))


def _choose_adapter(settings: Settings, make_env: MakeEnv) -> tuple[Callable[[EnvConfig], Adapter], EnvConfig, int]:
    """Return adapter class, configuration and seed of one environment. Raises UserError as `Environments` does."""
    check_supported(settings)
    base, config = settings.base, make_env_config(settings.base)
    return find_class("env_type", base.env_type), replace(config, name=make_env or config.name, n_envs=1), base.seed


def _is_large_color_image(roles: Mapping[str, Role]) -> bool:
    """Return whether the observation is a large color image that wrappers of Gymnasium can convert.

    They read one Box with the channels last, by means of OpenCV.
    """
    (name, spec), *others = next(iter(roles.values())).obs_specs.items()
    *sides, channels = spec.effective_env_shape if len(spec.shape) == 3 else (0, 0)
    is_color = name == OBS and not others and channels == 3 and spec.high == 255 and min(sides) >= COLOR_SIDE
    return is_color and find_module("cv2") is not None
