"""The settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.agents.settings import StateValueSettings
from algorithm.annotations import OnlyIf, Range


@dataclass(frozen=True, kw_only=True)
class PpoSettings(StateValueSettings):
    """The section `ppo_config`; default_config.yaml has the defaults, units and meanings."""

    clip_ratio: Annotated[float, Range(above=0)]  # epsilon (Eq. 7)
    clip_ratio_schedule: Literal["constant", "linear"]
    clip_ratio_final_fraction: Annotated[float, Range(at_least=0), OnlyIf(clip_ratio_schedule="linear")]
    entropy_coef_schedule: Literal["constant", "linear"]
    entropy_coef_final_fraction: Annotated[float, Range(at_least=0), OnlyIf(entropy_coef_schedule="linear")]
    value_clip: Annotated[float | None, Range(above=0)]
    target_kl: Annotated[float | None, Range(above=0)]
    epochs: Annotated[int, Range(at_least=1)]  # K (Algorithm 1)
    minibatches: Annotated[int, Range(at_least=1)]
