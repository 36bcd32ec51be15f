"""The samplers by name, and the sampler of the settings in `replay_config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from algorithm.replay.lazy_prioritized import LazyPrioritizedSampler
from algorithm.replay.prioritized import PrioritizedSampler
from algorithm.replay.sampler import PriorityFunction, Sampler, Sequences
from algorithm.replay.uniform import UniformSampler

SAMPLERS: Mapping[str, type[Sampler]] = {
    "uniform": UniformSampler,
    "prioritized": PrioritizedSampler,
    "lazy": LazyPrioritizedSampler,
}


class SamplerSettings(Protocol):
    """The settings of `replay_config` that samplers use; default_config.yaml states their meaning."""

    @property
    def sampler(self) -> str: ...
    @property
    def initial_priorities(self) -> str | None: ...
    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def beta_increment_per_sampling(self) -> float: ...
    @property
    def td_error_min(self) -> float: ...
    @property
    def td_error_max(self) -> float: ...
    @property
    def max_error_weight(self) -> float: ...
    @property
    def uniform_fraction(self) -> float: ...


def make_sampler(settings: SamplerSettings) -> Callable[[Sequences], Sampler]:
    """Return the sampler of the settings, as a function of the sequences that it draws from."""
    uses_recorded_errors = settings.initial_priorities is not None
    priority_function = PriorityFunction(settings.max_error_weight, settings.td_error_min, settings.td_error_max)
    if settings.sampler == "prioritized":
        return partial(
            PrioritizedSampler,
            priority_function=priority_function,
            alpha=settings.alpha,
            beta=settings.beta,
            beta_increment_per_sampling=settings.beta_increment_per_sampling,
            uses_recorded_errors=uses_recorded_errors,
        )
    if settings.sampler == "lazy":
        return partial(
            LazyPrioritizedSampler,
            priority_function=priority_function,
            uniform_fraction=settings.uniform_fraction,
            uses_recorded_errors=uses_recorded_errors,
        )
    return UniformSampler
