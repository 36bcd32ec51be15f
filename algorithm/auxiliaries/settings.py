"""The settings of auxiliaries with their defaults; without torch, so that commands check them early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.annotations import OnlyIf, Range

COUNTS, EMBEDDINGS = OnlyIf(memory="counts"), OnlyIf(memory="embeddings")  # of the auxiliary episodic
OWN_FEATURES = OnlyIf(memory="embeddings", features="own")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The settings that all auxiliaries share; docs/auxiliaries.md has their meanings."""

    update_every: Annotated[int, Range(at_least=1)] = 1


@dataclass(frozen=True, kw_only=True)
class AuxiliarySettings(LossSettings):
    """The settings of all auxiliaries with networks of their own; docs/auxiliaries.md has their meanings."""

    learning_rate: Annotated[float, Range(above=0)] = 3e-4
    max_grad_norm: Annotated[float, Range(above=0)] = 10.0


@dataclass(frozen=True, kw_only=True)
class StreamSettings(AuxiliarySettings):
    """The settings of an auxiliary whose rewards are a stream; docs/auxiliaries.md has their meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    strength: Annotated[float, Range(at_least=0)]  # weight of the reward; 0: no reward
    gamma: Annotated[float, Range(at_least=0, at_most=1)] = 0.99
    crosses_episodes: bool

    def __post_init__(self) -> None:
        if self.gamma == 1 and self.crosses_episodes:
            raise ValueError("gamma 1 needs crosses_episodes: false, since returns that cross episodes have no end")


@dataclass(frozen=True, kw_only=True)
class BehaviorCloningSettings(LossSettings):
    """The settings of behavior cloning; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 1.0  # weight of the loss in updates of the agent
    end: Annotated[float | None, Range(above=0, at_most=1)] = None  # part of the run after which the weight is 0
    batch_size: Annotated[int, Range(at_least=1)] = 64
    pretraining_updates: Annotated[int, Range(at_least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class GailSettings(StreamSettings):
    """The settings of GAIL; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 1.0
    crosses_episodes: bool = False
    reward: Literal["logit", "positive"] = "logit"
    input: Literal["observation", "observation_and_action"] = "observation_and_action"
    gradient_penalty: Annotated[float, Range(at_least=0)] = 10.0
    units: Annotated[int, Range(at_least=1)] = 128
    batch_size: Annotated[int, Range(at_least=1)] = 64
    policy_rows: Annotated[int, Range(at_least=1)] = 20_000  # kept rows of the policy
    update_every: Annotated[int, Range(at_least=1)] = 1

    def __post_init__(self) -> None:
        if self.gamma == 1:
            raise ValueError("gamma must be below 1, since rewards continue after the end of an episode")


@dataclass(frozen=True, kw_only=True)
class CuriositySettings(AuxiliarySettings):
    """The settings of curiosity; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 0.01  # eta, the weight of the reward
    model: Literal["both", "forward", "inverse"] = "both"
    forward_share: Annotated[float, Range(at_least=0, at_most=1)] = 0.2  # beta of Eq. 7, with `model: both`
    features: Literal["own", "agent"] = "own"
    units: Annotated[int, Range(at_least=1)] = 64
    update_every: Annotated[int, Range(at_least=1)] = 4


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(AuxiliarySettings):
    """The settings of the prediction model; docs/auxiliaries.md has their meanings."""

    transition_coef: Annotated[float, Range(at_least=0)] = 1.0
    reward_coef: Annotated[float, Range(at_least=0)] = 1.0
    observation_coef: Annotated[float, Range(at_least=0)] = 1.0
    transition_kl: Annotated[float, Range(at_least=0)] = 0.8
    tau: Annotated[float, Range(above=0, at_most=1)] = 0.005
    units: Annotated[int, Range(at_least=1)] = 64
    adaptive: bool = True
    update_every: Annotated[int, Range(at_least=1)] = 2


@dataclass(frozen=True, kw_only=True)
class EpisodicSettings(StreamSettings):
    """The settings of the episodic bonus; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 0.01
    crosses_episodes: bool = False
    memory: Literal["counts", "embeddings"] = "counts"
    observations: Annotated[str, COUNTS] = "*"
    cell_size: Annotated[float | None, Range(above=0), COUNTS] = 0.1
    bonus: Annotated[Literal["inverse_sqrt", "first_visit"], COUNTS] = "inverse_sqrt"
    features: Annotated[Literal["own", "agent"], EMBEDDINGS] = "own"
    embedding_size: Annotated[int, Range(at_least=1), OWN_FEATURES] = 32
    units: Annotated[int, Range(at_least=1), OWN_FEATURES] = 256
    learning_rate: Annotated[float, Range(above=0), OWN_FEATURES] = 3e-4
    max_grad_norm: Annotated[float, Range(above=0), OWN_FEATURES] = 10.0
    update_every: Annotated[int, Range(at_least=1), OWN_FEATURES] = 1
    neighbors: Annotated[int, Range(at_least=1), EMBEDDINGS] = 10
    kernel_epsilon: Annotated[float, Range(above=0), EMBEDDINGS] = 1e-4
    capacity: Annotated[int, Range(at_least=1), EMBEDDINGS] = 5000


@dataclass(frozen=True, kw_only=True)
class RndSettings(StreamSettings):
    """The settings of random network distillation; docs/auxiliaries.md has their meanings."""

    learning_rate: Annotated[float, Range(above=0)] = 1e-4
    strength: Annotated[float, Range(at_least=0)] = 0.5
    crosses_episodes: bool = True
    input: Literal["observation", "observation_and_action"] = "observation"
    units: Annotated[int, Range(at_least=1)] = 128
    outputs: Annotated[int, Range(at_least=1)] = 128
    predictor_share: Annotated[float, Range(above=0, at_most=1)] = 0.25
    warmup_steps: Annotated[int, Range(at_least=0)] = 1000


@dataclass(frozen=True, kw_only=True)
class SiameseSettings(AuxiliarySettings):
    """The settings of auxiliaries that compare pairs of observations; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 1.0
    steps: Annotated[int, Range(at_least=0)] = 3  # k
    shift: Annotated[int, Range(at_least=0)] = 4
    noise: Annotated[float, Range(at_least=0)] = 0.0
    tau: Annotated[float, Range(above=0, at_most=1)] = 0.01
    units: Annotated[int, Range(at_least=1)] = 128
    latent_size: Annotated[int, Range(at_least=1)] = 64
    max_pairs: Annotated[int, Range(at_least=2)] = 256
    adaptive: bool = False
    action_values: bool = False
    update_every: Annotated[int, Range(at_least=1)] = 2


AugmentedTemporalContrastSettings = SiameseSettings  # it has no other setting


@dataclass(frozen=True, kw_only=True)
class BootstrapYourOwnLatentSettings(SiameseSettings):
    """The settings of bootstrapped features; docs/auxiliaries.md has their meanings."""

    steps: Annotated[int, Range(at_least=0)] = 0
    symmetric: bool = False
