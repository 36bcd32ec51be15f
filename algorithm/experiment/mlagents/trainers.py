"""Which algorithm stands in for each trainer of ML-Agents, and what becomes of its hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from algorithm.experiment.mlagents.given import Given
from algorithm.experiment.mlagents.rows import (
    Becomes,
    Lost,
    NotServed,
    Read,
    Row,
    Rows,
    flag,
    number,
    one_of,
    positive,
    whole,
)
from algorithm.experiment.mlagents.tables import MEMORY
from algorithm.experiment.scaffold import OF_CONTINUOUS, SUGGESTED
from algorithm.experiment.settings import defaults


@dataclass(frozen=True)
class Trainer:
    """An algorithm of ours in place of a trainer; `begin` are settings of it that no key says: (value, why)."""

    algorithm: str
    note: str  # what the user is told of it
    rows: Rows  # by the key of `hyperparameters`
    begin: Mapping[str, tuple[Any, str]]


def _ours(given: Given, key: str) -> Any:
    """The default of a setting of the algorithm that stands in."""
    return defaults()[f"{TRAINERS[given.trainer].algorithm.lower()}_config"][key]


def _windows(rows: int, given: Given) -> int:
    """A batch of so many rows as windows of a replay."""
    length = given.value("network_settings.memory.sequence_length") or _ours(given, "trace_length")
    return max(1, round(rows / length))


def _ratio(steps: float, given: Given) -> Any:
    """Updates per collected rollout, from steps per update.

    ML-Agents counts the decisions of all agents and makes one update for every `steps_per_update` of them. Here a
    rollout has `collect_steps` rows of every lane, and is followed by `replay_ratio` batches: as many updates as there
    are collect_steps * lanes / steps_per_update, whatever the trace_length is, since batches were brought to the same
    number of rows. Lanes are copies times agents of a scene, which no trainer configuration tells. So this takes one
    agent for each copy, which is the least; and where that is no more than our default, that stays.
    """
    ratio = _ours(given, "collect_steps") * given.value("env_settings.num_envs") / steps
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


_COMMON: Mapping[str, Row] = {
    "learning_rate": Becomes("agent.learning_rate", positive(number), default=3e-4),
}
_FROM_REPLAY = "it is of one round of on-policy learning; a replay is learned from here"
_POCA: Rows = {
    **_COMMON,
    "learning_rate_schedule": Becomes("agent.learning_rate_schedule", one_of("linear", "constant"), default="linear"),
    "beta": Becomes("agent.entropy", number),
    "beta_schedule": Lost("the weight of the entropy bonus is constant", unless=("constant",)),
    "batch_size": Lost(f"{_FROM_REPLAY}, batch_size windows at a time"),
    "buffer_size": Lost(f"{_FROM_REPLAY}, of replay_config.capacity rows"),
    "num_epoch": Lost(f"{_FROM_REPLAY}, replay_ratio times per rollout"),
    "epsilon": Lost("no ratio is clipped so; trust_region_delta bounds what an update changes"),
    "epsilon_schedule": Lost("no ratio is clipped so"),
    "lambd": Lost(
        "Retrace cuts its traces by the ratios of both policies; acer_config.decay would shorten them further"
    ),
}
_PPO: Rows = {**_POCA, "shared_critic": Read(flag, _apart)}
_SAC: Rows = {
    **_COMMON,
    "learning_rate_schedule": Becomes("agent.learning_rate_schedule", one_of("linear", "constant")),
    "batch_size": Becomes("agent.batch_size", positive(whole), _windows),
    "buffer_size": Becomes("replay_config.capacity", positive(whole)),
    "buffer_init_steps": Becomes("agent.replay_start", whole),
    "steps_per_update": Becomes("agent.replay_ratio", positive(number), _ratio),
    "reward_signal_steps_per_update": Lost("there is no reward but the scene's, so nothing of it is learned"),
    "save_replay_buffer": Lost("a checkpoint always holds the replay", unless=(True,)),
    "tau": Lost("it moves the target of SAC's critics; ACER's critic has none"),
    "init_entcoef": Lost("it is the first temperature of SAC; the weight of ACER's entropy bonus is constant"),
}

_DEVIATION = "of continuous actions, which it learns there too"
_ACER: Mapping[str, tuple[Any, str]] = {
    **{key: (value, "rewards of any size, as advantages are there") for key, value in SUGGESTED.items()},
    **{key: (OF_CONTINUOUS[key], _DEVIATION) for key in ("std", "std_init", "std_floor")},
}

TRAINERS: Mapping[str, Trainer] = {
    "ppo": Trainer("ACER", "ppo becomes ACER, which learns from replay, too", _PPO, _ACER),
    "poca": Trainer(
        "ACER",
        "poca becomes ACER: every agent gets its group's reward beside its own, and no critic sees the whole group",
        _POCA,
        _ACER,
    ),
    # The one place to change when there is SAC: algorithm, note, the rows that are Lost, and `begin`.
    "sac": Trainer("ACER", "sac becomes ACER for now; SAC is on its way", _SAC, _ACER),
}
