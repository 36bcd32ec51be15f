"""Which algorithm stands in for each trainer of ML-Agents, and what becomes of its hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from algorithm.cli.init import CONTINUOUS_SETTINGS, SUGGESTED_SETTINGS
from algorithm.config.loader import load_defaults
from algorithm.mlagents.mapping import MEMORY
from algorithm.mlagents.rules import (
    Consumed,
    MapsTo,
    Rules,
    Unsupported,
    UnsupportedValue,
    make_choice,
    make_positive,
    to_bool,
    to_integer,
    to_number,
)
from algorithm.mlagents.trainer_config import TrainerConfig

SEQUENCE = f"{MEMORY}.sequence_length"


@dataclass(frozen=True)
class Trainer:
    """An algorithm of ours in place of a trainer; `make_settings` tells settings of it that no key says: (value, why)."""

    algorithm: str
    note: str  # what the user is told of it
    rules: Rules  # by the key of `hyperparameters`
    make_settings: Callable[[TrainerConfig], Mapping[str, tuple[Any, str]]]
    batch_size: int  # ML-Agents' default


def _get_default(config: TrainerConfig, key: str) -> Any:
    """The default of a setting of the algorithm that stands in."""
    return load_defaults()[f"{TRAINERS[config.trainer].algorithm.lower()}_config"][key]


def _convert_batch_size(rows: int, config: TrainerConfig) -> int:
    """A batch of so many rows as windows of a replay."""
    length = config.get(SEQUENCE) or _get_default(config, "sequence_length")
    return max(1, round(rows / length))


def _convert_start(steps: int, config: TrainerConfig) -> int:
    """ML-Agents also waits for a whole batch."""
    return max(steps, config.get("hyperparameters.batch_size"))


def _convert_entropy(alpha: float, config: TrainerConfig) -> float:
    return round(math.log(alpha), 4)


def _convert_ratio(steps: float, config: TrainerConfig) -> Any:
    """Updates per collected rollout, from steps per update.

    ML-Agents counts the decisions of all agents and makes one update for every `steps_per_update` of them. Here a
    rollout has `rollout_length` rows of every lane, and is followed by `replay_ratio` batches: as many updates as there
    are rollout_length * lanes / steps_per_update, whatever the sequence_length is, since batches were brought to the
    same number of rows. Lanes are copies times agents of a scene, which no trainer configuration tells. So this takes
    one agent for each copy, which is the least; and where that is no more than our default, that stays.
    """
    ratio = _get_default(config, "rollout_length") * config.get("env_settings.num_envs") / steps
    if ratio <= _get_default(config, "replay_ratio"):
        raise UnsupportedValue(
            f"as many updates would be a replay_ratio of {ratio:g} for each agent in the scene, whose number is not "
            f"told; it stays {_get_default(config, 'replay_ratio'):g}"
        )
    return ratio


def _check_shared_critic(shared: bool, config: TrainerConfig) -> None:
    """Whether policy and critic can have layers of their own."""
    if not shared and f"{MEMORY}.memory_size" in config.entries:
        raise UnsupportedValue("a memory and what stands in front of it are of both policy and critic")


_FROM_REPLAY = "it is of one round of on-policy learning; a replay is learned from here"
_SCHEDULE = make_choice("linear", "constant")
_POCA: Rules = {
    "learning_rate": MapsTo("agent.learning_rate", make_positive(to_number), default=3e-4),
    "learning_rate_schedule": MapsTo("agent.learning_rate_schedule", _SCHEDULE, default="linear"),
    "beta": MapsTo("agent.entropy_coef", to_number),
    "beta_schedule": Unsupported("the weight of the entropy bonus is constant", ("constant",), _SCHEDULE),
    "batch_size": Unsupported(f"{_FROM_REPLAY}, batch_size windows at a time", converter=to_integer),
    "buffer_size": Unsupported(f"{_FROM_REPLAY}, of replay_config.capacity rows", converter=to_integer),
    "num_epoch": Unsupported(f"{_FROM_REPLAY}, replay_ratio times per rollout", converter=to_integer),
    "epsilon": Unsupported(
        "ratios are not clipped as in PPO; trust_region_delta limits the change of an update", converter=to_number
    ),
    "epsilon_schedule": Unsupported("ratios are not clipped as in PPO", converter=_SCHEDULE),
    "lambd": Unsupported(
        "Retrace cuts its traces by the ratios of both policies; acer_config.trace_lambda would shorten them further",
        converter=to_number,
    ),
}
_PPO: Rules = {**_POCA, "shared_critic": Consumed(to_bool, _check_shared_critic)}
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
    "reward_signal_steps_per_update": Unsupported("there is no learned reward signal", converter=to_number),
    "save_replay_buffer": Unsupported("a checkpoint always holds the replay", (True,), to_bool),
    "tau": MapsTo("agent.tau", to_number),
    "init_entcoef": MapsTo("agent.init_log_alpha", make_positive(to_number), _convert_entropy, default=1.0),
}

_STD_NOTE = "of continuous actions, which it learns there too"
_ACER: Mapping[str, tuple[Any, str]] = {
    **{key: (value, "rewards of any size, as advantages are there") for key, value in SUGGESTED_SETTINGS.items()},
    **{key: (CONTINUOUS_SETTINGS[key], _STD_NOTE) for key in ("std", "std_init", "std_min")},
}


def _make_acer_settings(config: TrainerConfig) -> Mapping[str, tuple[Any, str]]:
    return _ACER


def _make_sac_settings(config: TrainerConfig) -> Mapping[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {"target_d_alpha": (0.2, "what the trainer aims at")}
    if length := config.get(SEQUENCE):
        settings["burn_in_step"] = (length // 2, f"half of {SEQUENCE}, so that memories of older networks do no harm")
    return settings


TRAINERS: Mapping[str, Trainer] = {
    "ppo": Trainer("ACER", "ppo becomes ACER, which also learns from replay", _PPO, _make_acer_settings, 1024),
    "poca": Trainer(
        "ACER",
        "poca becomes ACER: every agent gets its group's reward beside its own, and no critic sees the whole group",
        _POCA,
        _make_acer_settings,
        1024,
    ),
    "sac": Trainer(
        "SAC", "sac becomes SAC with target critics instead of a network of state values", _SAC, _make_sac_settings, 128
    ),
}
