"""The settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.agents.state_value import StateValueSettings
from algorithm.annotations import Range


@dataclass(frozen=True, kw_only=True)
class PpoSettings(StateValueSettings):
    """The section `ppo_config`; default_config.yaml has the defaults, units and meanings."""

    clip_ratio: Annotated[float, Range(above=0)]  # epsilon (Eq. 7)
    clip_ratio_schedule: Literal["constant", "linear"]
    entropy_coef_schedule: Literal["constant", "linear"]
    value_clip: Annotated[float | None, Range(above=0)]
    target_kl: Annotated[float | None, Range(above=0)]
    epochs: Annotated[int, Range(at_least=1)]  # K (Algorithm 1)
    minibatches: Annotated[int, Range(at_least=1)]
