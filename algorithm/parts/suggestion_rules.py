"""The rules that suggest settings for an environment, each a function that yields settings with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log10
from typing import Any

from algorithm.config.loader import Settings, resolve
from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.sections import BaseConfig
from algorithm.config.yaml_layers import Tree
from algorithm.networks.default_network import has_images, is_table
from algorithm.parts.env_probe import EnvProbe
from algorithm.parts.make_env import describe_missing_limit, find_episode_limit, make_env_config
from algorithm.specs import Role

# For unknown environments: settings for rewards of any size, and the settings that suit continuous actions in `envs`.
SUGGESTED_SETTINGS: Tree = {"reward_normalization": "return_std"}
CONTINUOUS_SETTINGS: Tree = {
    "learning_rate": 0.001,
    "std": "learned",
    "std_init": 0.5,
    "std_min": 0.2,
    "average_policy_decay": 0.995,
    "importance_clip": 5.0,
    "batch_size": 32,
    "replay_ratio": 8.0,
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
EVALUATIONS = 20  # number of evaluations in a run without a goal, or with an explorer
DECAYING_RATE = 0.001  # learning rates of SAC at the start of a run
REPETITION = 0.95  # highest probability of a repeated action: it lasts 20 steps on average
MISSING_LIMIT = 1000  # limit of steps for episodes that may never end


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A setting with the reason for its value, for people; without a reason, the meaning of the setting explains it."""

    path: str
    value: Any
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A record of what the rules read.

    Attributes:
        given: the settings that the user gives, and those that are needed to observe the environment.
        roles: the roles of the environment.
        probe: the random play; None for an environment that is not probed.
    """

    given: Tree
    roles: Mapping[str, Role]
    probe: EnvProbe | None

    @cached_property
    def settings(self) -> Settings:
        """The given settings with the defaults of all others."""
        return resolve([("suggested settings", self.given)])

    @property
    def base(self) -> BaseConfig:
        """The section base_config of `settings`."""
        return self.settings.base

    @property
    def section(self) -> str:
        """The name of the section of the algorithm."""
        return self.settings.agent_section

    @property
    def has_gamma(self) -> bool:
        """Whether the discount factor is given."""
        return "gamma" in self.given.get(self.section, {})

    @property
    def has_continuous(self) -> bool:
        """Whether an action has a continuous dimension."""
        return any(role.action_spec.continuous for role in self.roles.values())

    @property
    def has_discrete(self) -> bool:
        """Whether an action has a discrete branch."""
        return any(role.action_spec.branches for role in self.roles.values())

    @property
    def has_tables(self) -> bool:
        """Whether the network of every role is a table."""
        return all(is_table(role) for role in self.roles.values())

    @property
    def has_images(self) -> bool:
        """Whether an observation is an image."""
        return any(has_images(role) for role in self.roles.values())


Rule = Callable[[Facts], Iterator[Suggestion]]


def choose_algorithm(facts: Facts) -> Iterator[Suggestion]:
    """Suggest SAC for continuous actions and ACER for all others, unless a section of an algorithm is given."""
    given = [name for name in AGENTS if facts.given.get(get_agent_section(name))]
    if given:
        yield Suggestion(path="base_config.algorithm", value=given[0])
    elif facts.has_discrete or facts.has_images:
        reason = "ACER learns several times from each step, with actions of every kind"
        yield Suggestion(path="base_config.algorithm", value="ACER", reason=reason)
    else:
        reason = "SAC needs the fewest env steps for continuous actions"
        yield Suggestion(path="base_config.algorithm", value="SAC", reason=reason)


def limit_episodes(facts: Facts) -> Iterator[Suggestion]:
    """Limit the steps of episodes for which no limit is registered, if random actions never end one."""
    probe, base = facts.probe, facts.base
    missing = describe_missing_limit(base.env_type, make_env_config(base))
    if missing and probe and probe.is_complete and len(probe.rewards) and not probe.episode_lengths:
        reason = f"no limit is registered, and no episode ended in {len(probe.rewards):,} random steps"
        yield Suggestion(path="base_config.max_step_each_iter", value=MISSING_LIMIT, reason=reason)


def look_ahead(facts: Facts) -> Iterator[Suggestion]:
    """Raise the discount factor if the limit of steps per episode is long."""
    limit = find_episode_limit(facts.base.env_type, make_env_config(facts.base))
    if limit and limit >= LONG_EPISODE and not facts.has_gamma and not facts.has_images:
        reason = f"with episodes of up to {limit:,} steps, rewards of the next 200 steps count"
        yield Suggestion(path=f"{facts.section}.gamma", value=LONG_GAMMA, reason=reason)


def scale_rewards(facts: Facts) -> Iterator[Suggestion]:
    """Scale rewards so that returns have the size `SCALED_RETURN`; divide rare or unknown rewards by their returns."""
    probe, section = facts.probe, facts.section
    if {"reward_scale", "reward_normalization"} & set(facts.given.get(section, {})):
        return
    if probe and probe.reward_frequency >= RARE_REWARDS:
        scale = _compute_scaled_reward(facts) / probe.reward_size
        reason = f"rewards of about {_round(probe.reward_size, 2):g}; discounted returns of up to {SCALED_RETURN:g}"
        yield Suggestion(path=f"{section}.reward_scale", value=_round(scale, 1), reason=reason)
    else:
        reason = "the size of rewards is not known"
        if probe and len(probe.rewards):
            reason = f"{(probe.rewards != 0).sum()} of {len(probe.rewards):,} random actions were rewarded"
        yield Suggestion(path=f"{section}.reward_normalization", value="return_std", reason=reason)


def weigh_entropy(facts: Facts) -> Iterator[Suggestion]:
    """Weigh the entropy bonus in proportion to the scaled rewards."""
    if facts.has_images or facts.has_continuous:
        return
    scaled_reward = SCALED_REWARD
    if any(suggestion.path.endswith("reward_scale") for suggestion in scale_rewards(facts)):
        scaled_reward = _compute_scaled_reward(facts)
    fraction, reason = ENTROPY, "small compared with the scaled rewards, so that the policy may become certain"
    if facts.has_tables:
        fraction, reason = TABLE_ENTROPY, "a table does not carry over what it learned, and has to try every action"
    if any(explore(facts)):
        fraction, reason = EXPLORING_ENTROPY, "large, so that the policy stays random until rewards differ"
    yield Suggestion(path=f"{facts.section}.entropy_coef", value=_round(fraction * scaled_reward, 1), reason=reason)


def _compute_scaled_reward(facts: Facts) -> float:
    """Return the usual size of a scaled reward, with the discount factor that is suggested, given or the default."""
    gamma = next((suggestion.value for suggestion in look_ahead(facts)), facts.settings.agent.gamma)
    return SCALED_RETURN * (1 - min(gamma, MAX_GAMMA))


def explore(facts: Facts) -> Iterator[Suggestion]:
    """Repeat actions in some environments if random actions made no difference to the rewards."""
    probe = facts.probe
    if facts.given.get("explorer") or facts.has_continuous or not (probe and probe.has_equal_rewards):
        return
    reason = (
        f"all {len(probe.rewards):,} random actions had the same reward; an action that is repeated leads further. The "
        "first environment repeats none, the last one with this probability"
    )
    yield Suggestion(path="explorer.action_repeat", value=[0.0, REPETITION], reason=reason)
    every = max(1, (facts.base.max_step or facts.base.save_every or 1) // EVALUATIONS)
    reason = "training episodes contain repeated actions, so that their returns are lower"
    yield Suggestion(path="base_config.evaluate_every", value=every, reason=reason)


def replay_vectors(facts: Facts) -> Iterator[Suggestion]:
    """Suggest ACER's updates for observations that are vectors and discrete actions: many, and small changes each."""
    if facts.has_images or facts.has_continuous:
        return
    yield Suggestion(path="base_config.n_envs", value=4, reason="few environments: more updates for each env step")
    rate = (0.002, "smaller than the default, which is for more environments")
    if facts.has_tables:
        rate = (0.02, "a table learns each of its rows separately, and so needs larger steps")
    reasons: dict[str, tuple[Any, str]] = {
        "learning_rate": rate,
        "learning_rate_schedule": ("linear", "a constant learning rate sometimes unlearns what was learned"),
        "average_policy_decay": (0.995, "a slower average policy, since there are many updates"),
        "trust_region_delta": (0.3, "smaller changes of the policy: with 1, policies that were good can be lost"),
        "rollout_length": (40, "twice the default, so that rewards reach more steps at once"),
        "sequence_length": (40, "as long as a rollout"),
        "batch_size": (8, ""),
        "replay_ratio": (16.0, "each env step is learned from 32 times on average"),
    }
    for key, (value, reason) in reasons.items():
        yield Suggestion(path=f"{facts.section}.{key}", value=value, reason=reason)


def learn_from_images(facts: Facts) -> Iterator[Suggestion]:
    """Suggest a smaller learning rate for the convolutions of ACER."""
    if facts.has_images and not facts.has_continuous:
        reason = "smaller than the default, since a step changes every place of an image"
        yield Suggestion(path=f"{facts.section}.learning_rate", value=0.001, reason=reason)


def replay_continuous(facts: Facts) -> Iterator[Suggestion]:
    """Suggest ACER's settings for continuous actions."""
    if facts.has_continuous:
        for key, value in CONTINUOUS_SETTINGS.items():
            yield Suggestion(path=f"{facts.section}.{key}", value=value)


def update_every_step(facts: Facts) -> Iterator[Suggestion]:
    """Suggest one environment for SAC if its actions are continuous, and one update for each env step."""
    n_envs = facts.base.n_envs
    if "n_envs" not in facts.given["base_config"] and not facts.has_discrete:
        n_envs = 1
        yield Suggestion(path="base_config.n_envs", value=1, reason="SAC learns after each step of one environment")
    ratio = float(n_envs * facts.settings.agent.rollout_length)
    yield Suggestion(path=f"{facts.section}.replay_ratio", value=ratio, reason="one update for each env step")


def decay_learning_rates(facts: Facts) -> Iterator[Suggestion]:
    """Suggest larger learning rates for SAC, which fall to 0 in the run, if all its actions are continuous."""
    if facts.base.max_step is None or facts.has_discrete:
        return
    reason = "larger than the default, for fast learning at first; it falls to 0"
    for name in ("critic", "policy", *(["alpha"] if facts.settings.agent.use_auto_alpha else [])):
        yield Suggestion(path=f"{facts.section}.learning_rate_{name}", value=DECAYING_RATE, reason=reason)
    reason = "small steps at the end of the run, so that the last updates change the policy little"
    yield Suggestion(path=f"{facts.section}.learning_rate_schedule", value="linear", reason=reason)


def start_early(facts: Facts) -> Iterator[Suggestion]:
    """Start to learn after a tenth of a short run, which would otherwise learn little or nothing."""
    max_step, starts = facts.base.max_step, facts.settings.agent.learning_starts
    if max_step is not None and max_step < 10 * starts:
        path = f"{facts.section}.learning_starts"
        yield Suggestion(path=path, value=max(1, max_step // 10), reason="a tenth of max_step")


def _round(value: float, digits: int) -> float:
    """Return a positive number rounded to a number of significant digits."""
    return round(value, digits - 1 - floor(log10(value)))


# The rules for each algorithm, in their order.
RULES: Mapping[str, Sequence[Rule]] = {
    "ACER": (
        limit_episodes,
        replay_vectors,
        learn_from_images,
        replay_continuous,
        look_ahead,
        scale_rewards,
        weigh_entropy,
        explore,
    ),
    "SAC": (limit_episodes, update_every_step, decay_learning_rates, start_early),
    "REACTOR": (limit_episodes, look_ahead, start_early),
    "A2C": (limit_episodes, look_ahead, scale_rewards),
    "PPO": (limit_episodes, look_ahead, scale_rewards),
}
