"""Which algorithm stands in for each trainer of ML-Agents, and what becomes of its hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from algorithm.cli.init import OF_CONTINUOUS, SUGGESTED
from algorithm.config.loader import defaults
from algorithm.mlagents.mapping import MEMORY
from algorithm.mlagents.rules import (
    Becomes,
    Lost,
    NotServed,
    Read,
    Rows,
    flag,
    number,
    one_of,
    positive,
    whole,
)
from algorithm.mlagents.trainer_config import Given

SEQUENCE = f"{MEMORY}.sequence_length"


@dataclass(frozen=True)
class Trainer:
    """An algorithm of ours in place of a trainer; `begin` tells settings of it that no key says: (value, why)."""

    algorithm: str
    note: str  # what the user is told of it
    rows: Rows  # by the key of `hyperparameters`
    begin: Callable[[Given], Mapping[str, tuple[Any, str]]]
    batch_size: int  # ML-Agents' default


def _ours(given: Given, key: str) -> Any:
    """The default of a setting of the algorithm that stands in."""
    return defaults()[f"{TRAINERS[given.trainer].algorithm.lower()}_config"][key]


def _windows(rows: int, given: Given) -> int:
    """A batch of so many rows as windows of a replay."""
    length = given.value(SEQUENCE) or _ours(given, "sequence_length")
    return max(1, round(rows / length))


def _start(steps: int, given: Given) -> int:
    """ML-Agents also waits for a whole batch."""
    return max(steps, given.value("hyperparameters.batch_size"))


def _logarithm(alpha: float, given: Given) -> float:
    return round(math.log(alpha), 4)


def _ratio(steps: float, given: Given) -> Any:
    """Updates per collected rollout, from steps per update.

    ML-Agents counts the decisions of all agents and makes one update for every `steps_per_update` of them. Here a
    rollout has `rollout_length` rows of every lane, and is followed by `replay_ratio` batches: as many updates as there
    are rollout_length * lanes / steps_per_update, whatever the sequence_length is, since batches were brought to the
    same number of rows. Lanes are copies times agents of a scene, which no trainer configuration tells. So this takes
    one agent for each copy, which is the least; and where that is no more than our default, that stays.
    """
    ratio = _ours(given, "rollout_length") * given.value("env_settings.num_envs") / steps
    if ratio <= _ours(given, "replay_ratio"):
        raise NotServed(
            f"as many updates would be a replay_ratio of {ratio:g} for each agent in the scene, whose number is not "
            f"told; it stays {_ours(given, 'replay_ratio'):g}"
        )
    return ratio


def _apart(shared: bool, given: Given) -> None:
    """Whether policy and critic can have layers of their own."""
    if not shared and f"{MEMORY}.memory_size" in given.entries:
        raise NotServed("a memory and what stands in front of it are of both policy and critic")


_FROM_REPLAY = "it is of one round of on-policy learning; a replay is learned from here"
_SCHEDULE = one_of("linear", "constant")
_POCA: Rows = {
    "learning_rate": Becomes("agent.learning_rate", positive(number), default=3e-4),
    "learning_rate_schedule": Becomes("agent.learning_rate_schedule", _SCHEDULE, default="linear"),
    "beta": Becomes("agent.entropy_coef", number),
    "beta_schedule": Lost("the weight of the entropy bonus is constant", ("constant",), _SCHEDULE),
    "batch_size": Lost(f"{_FROM_REPLAY}, batch_size windows at a time", kind=whole),
    "buffer_size": Lost(f"{_FROM_REPLAY}, of replay_config.capacity rows", kind=whole),
    "num_epoch": Lost(f"{_FROM_REPLAY}, replay_ratio times per rollout", kind=whole),
    "epsilon": Lost("ratios are not clipped as in PPO; trust_region_delta limits the change of an update", kind=number),
    "epsilon_schedule": Lost("ratios are not clipped as in PPO", kind=_SCHEDULE),
    "lambd": Lost(
        "Retrace cuts its traces by the ratios of both policies; acer_config.trace_lambda would shorten them further",
        kind=number,
    ),
}
_PPO: Rows = {**_POCA, "shared_critic": Read(flag, _apart)}
_SAC: Rows = {
    "learning_rate": Becomes(
        "agent.learning_rate_critic",
        positive(number),
        default=3e-4,
        also=("agent.learning_rate_policy", "agent.learning_rate_alpha"),
    ),
    "learning_rate_schedule": Becomes("agent.learning_rate_schedule", _SCHEDULE),
    "batch_size": Becomes("agent.batch_size", positive(whole), _windows, default=128),
    "buffer_size": Becomes("replay_config.capacity", positive(whole)),
    "buffer_init_steps": Becomes("agent.learning_starts", whole, _start, default=0),
    "steps_per_update": Becomes("agent.replay_ratio", positive(number), _ratio),
    "reward_signal_steps_per_update": Lost("there is no learned reward signal", kind=number),
    "save_replay_buffer": Lost("a checkpoint always holds the replay", (True,), flag),
    "tau": Becomes("agent.tau", number),
    "init_entcoef": Becomes("agent.init_log_alpha", positive(number), _logarithm, default=1.0),
}

_DEVIATION = "of continuous actions, which it learns there too"
_ACER: Mapping[str, tuple[Any, str]] = {
    **{key: (value, "rewards of any size, as advantages are there") for key, value in SUGGESTED.items()},
    **{key: (OF_CONTINUOUS[key], _DEVIATION) for key in ("std", "std_init", "std_min")},
}


def _acer(given: Given) -> Mapping[str, tuple[Any, str]]:
    return _ACER


def _sac(given: Given) -> Mapping[str, tuple[Any, str]]:
    begin: dict[str, tuple[Any, str]] = {"target_d_alpha": (0.2, "what the trainer aims at")}
    if length := given.value(SEQUENCE):
        begin["burn_in_step"] = (length // 2, f"half of {SEQUENCE}, so that memories of older networks do no harm")
    return begin


TRAINERS: Mapping[str, Trainer] = {
    "ppo": Trainer("ACER", "ppo becomes ACER, which also learns from replay", _PPO, _acer, 1024),
    "poca": Trainer(
        "ACER",
        "poca becomes ACER: every agent gets its group's reward beside its own, and no critic sees the whole group",
        _POCA,
        _acer,
        1024,
    ),
    "sac": Trainer("SAC", "sac becomes SAC with target critics instead of a network of state values", _SAC, _sac, 128),
}
