"""The algorithm for each trainer of ML-Agents, and the rules for its hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from algorithm.config.yaml_layers import load_defaults
from algorithm.tools.mlagents.mapping import MEMORY, count_envs
from algorithm.tools.mlagents.trainer_config import (
    USE_DEFAULT,
    Consumed,
    MapsTo,
    Rules,
    TrainerConfig,
    Unsupported,
    UnsupportedValue,
    make_choice,
    make_positive,
    to_bool,
    to_integer,
    to_number,
)

SEQUENCE = f"{MEMORY}.sequence_length"
# ML-Agents' values at the end of linear schedules, by hyperparameter, with the setting that replaces it.
LINEAR_ENDS: Mapping[str, tuple[str, float]] = {"beta": ("entropy_coef", 1e-5), "epsilon": ("clip_ratio", 0.1)}
WHOLE_SEQUENCES = (
    "with a memory, a minibatch has whole sequences of agents, whose number is not known: ppo_config.minibatches is 1, "
    "and can be at most the number of agents"
)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer of ML-Agents and the algorithm that replaces it.

    Attributes:
        algorithm: Name of the algorithm.
        note: Line for the user about the replacement.
        rules: Rules by the key of `hyperparameters`.
        behavior_rules: Rules of further keys of a behavior, in place of those for all trainers.
        make_settings: Returns settings of the algorithm that follow from no key, as {setting: (value, comment)}.
        batch_size: ML-Agents' default.
    """

    algorithm: str
    note: str
    rules: Rules
    behavior_rules: Rules
    make_settings: Callable[[TrainerConfig], Mapping[str, tuple[Any, str]]]
    batch_size: int


def _get_default(config: TrainerConfig, key: str) -> Any:
    """Return Samara's default of a setting of the algorithm."""
    return load_defaults()[f"{TRAINERS[config.trainer].algorithm.lower()}_config"][key]


def _convert_batch_size(steps: int, config: TrainerConfig) -> int:
    """Return the number of replayed sequences that hold a batch of `steps` steps."""
    length = config.get(SEQUENCE) or _get_default(config, "sequence_length")
    return max(1, round(steps / length))


def _convert_start(steps: int, config: TrainerConfig) -> int:
    """Return when learning starts: ML-Agents also waits for a full batch."""
    return max(steps, config.get("hyperparameters.batch_size"))


def _convert_entropy(alpha: float, config: TrainerConfig) -> float:
    return round(math.log(alpha), 4)


def _convert_ratio(steps: float, config: TrainerConfig) -> Any:
    """Return the updates per collected rollout that correspond to ML-Agents' steps per update.

    ML-Agents counts the decisions of all agents and makes one update for every `steps_per_update` of them. A rollout
    has `rollout_length` decisions of every agent and is followed by `replay_ratio` updates, so the ratio is
    rollout_length * agents / steps_per_update; it does not depend on sequence_length, since a batch has as many steps
    as in ML-Agents. A trainer configuration does not state the number of agents in a scene. The ratio assumes one agent
    in each environment, the smallest number; Samara's default applies if it is larger.
    """
    ratio = _get_default(config, "rollout_length") * count_envs(config) / steps
    if ratio <= _get_default(config, "replay_ratio"):
        raise UnsupportedValue(
            f"as many updates need a replay_ratio of {ratio:g} for each agent in the scene, whose number is not known; "
            f"it stays {_get_default(config, 'replay_ratio'):g}"
        )
    return ratio


def _check_shared_critic(shared: bool, config: TrainerConfig) -> None:
    """Raise UnsupportedValue for separate networks with a memory."""
    if not shared and f"{MEMORY}.memory_size" in config.entries:
        raise UnsupportedValue("policy and critic share a memory and the layers before it")


def _convert_buffer_size(steps: int, config: TrainerConfig) -> Any:
    """Return the number of minibatches of a buffer of `steps` steps."""
    if f"{MEMORY}.memory_size" not in config.entries:
        batch_size = config.get("hyperparameters.batch_size", TRAINERS[config.trainer].batch_size)
        return max(1, round(steps / batch_size))
    if config.entries["hyperparameters.buffer_size"].key:
        raise UnsupportedValue(WHOLE_SEQUENCES)
    return USE_DEFAULT


def _check_batch_size(steps: int, config: TrainerConfig) -> None:
    """Raise UnsupportedValue for a network with a memory."""
    if f"{MEMORY}.memory_size" in config.entries:
        raise UnsupportedValue(WHOLE_SEQUENCES)


def _check_sequence_length(length: int, config: TrainerConfig) -> None:
    """Raise UnsupportedValue if the file sets the length of a memory's sequences."""
    if config.entries[SEQUENCE].key:
        raise UnsupportedValue("gradients pass through the whole rollout, rollout_length steps")


_SCHEDULE = make_choice("linear", "constant")
_POCA: Rules = {
    "learning_rate": MapsTo("agent.learning_rate", make_positive(to_number), default=3e-4),
    "learning_rate_schedule": MapsTo("agent.learning_rate_schedule", _SCHEDULE, default="linear"),
    "beta": MapsTo("agent.entropy_coef", to_number, default=5e-3),
    "beta_schedule": MapsTo("agent.entropy_coef_schedule", _SCHEDULE, default="linear"),
    "batch_size": Consumed(make_positive(to_integer), _check_batch_size),
    "buffer_size": MapsTo("agent.minibatches", make_positive(to_integer), _convert_buffer_size, default=10240),
    "num_epoch": MapsTo("agent.epochs", make_positive(to_integer), default=3),
    # ML-Agents clips ratios and values by the same number.
    "epsilon": MapsTo("agent.clip_ratio", make_positive(to_number), default=0.2, other_settings=("agent.value_clip",)),
    "epsilon_schedule": MapsTo("agent.clip_ratio_schedule", _SCHEDULE, default="linear"),
    "lambd": MapsTo("agent.gae_lambda", to_number, default=0.95),
}
_PPO: Rules = {**_POCA, "shared_critic": Consumed(to_bool, _check_shared_critic)}
_PPO_BEHAVIOR: Rules = {
    "time_horizon": MapsTo("agent.rollout_length", make_positive(to_integer), default=64),
    SEQUENCE: Consumed(make_positive(to_integer), _check_sequence_length),
}
_SAC: Rules = {
    "learning_rate": MapsTo(
        "agent.learning_rate_critic",
        make_positive(to_number),
        default=3e-4,
        other_settings=("agent.learning_rate_policy", "agent.learning_rate_alpha"),
    ),
    "learning_rate_schedule": MapsTo("agent.learning_rate_schedule", _SCHEDULE),
    "batch_size": MapsTo("agent.batch_size", make_positive(to_integer), _convert_batch_size, default=128),
    "buffer_size": MapsTo("replay_config.capacity", make_positive(to_integer)),
    "buffer_init_steps": MapsTo("agent.learning_starts", to_integer, _convert_start, default=0),
    "steps_per_update": MapsTo("agent.replay_ratio", make_positive(to_number), _convert_ratio),
    "reward_signal_steps_per_update": Unsupported(
        "auxiliaries learn in every update of the agent", converter=to_number
    ),
    "save_replay_buffer": Unsupported("a checkpoint always holds the replay", (True,), to_bool),
    "tau": MapsTo("agent.tau", to_number),
    "init_entcoef": MapsTo("agent.init_log_alpha", make_positive(to_number), _convert_entropy, default=1.0),
}


def _make_ppo_settings(config: TrainerConfig) -> Mapping[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {"reward_normalization": ("return_std", "rewards of any size")}
    for key, (name, end) in LINEAR_ENDS.items():
        start = config.get(f"hyperparameters.{key}")
        if start and config.get(f"hyperparameters.{key}_schedule") == "linear":
            fraction = float(f"{end / start:.6g}")
            settings[f"{name}_final_fraction"] = (fraction, f"{key} ends at {end:g} in the trainer")
    if f"{MEMORY}.memory_size" in config.entries:
        settings["minibatches"] = (1, "at most the number of agents, since minibatches have whole sequences")
    return settings


def _make_sac_settings(config: TrainerConfig) -> Mapping[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {"target_d_alpha": (0.2, "the trainer's target entropy")}
    if length := config.get(SEQUENCE):
        settings["burn_in_step"] = (length // 2, f"half of {SEQUENCE}, since stored memories come from older networks")
    return settings


TRAINERS: Mapping[str, Trainer] = {
    "ppo": Trainer(
        algorithm="PPO",
        note="ppo becomes PPO, whose buffer has rollout_length (time_horizon) steps of every agent",
        rules=_PPO,
        behavior_rules=_PPO_BEHAVIOR,
        make_settings=_make_ppo_settings,
        batch_size=1024,
    ),
    "poca": Trainer(
        algorithm="PPO",
        note="poca becomes PPO: the reward of a group is added to each agent's reward, without a critic of the group",
        rules=_POCA,
        behavior_rules=_PPO_BEHAVIOR,
        make_settings=_make_ppo_settings,
        batch_size=1024,
    ),
    "sac": Trainer(
        algorithm="SAC",
        note="sac becomes SAC with target critics instead of a network of state values",
        rules=_SAC,
        behavior_rules={},
        make_settings=_make_sac_settings,
        batch_size=128,
    ),
}
