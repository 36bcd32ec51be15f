"""Which sampler the settings of a replay name, and with what."""

from __future__ import annotations

from functools import partial

from algorithm.config.schema import ReplayConfig
from algorithm.replay import LazyPrioritizedSampler, PrioritizedSampler, PriorityFunction, Sampler, UniformSampler


def make_sampler(config: ReplayConfig) -> partial[Sampler]:
    """A sampler that lacks only its windows."""
    priority_function = PriorityFunction(config.max_error_weight, config.td_error_min, config.td_error_max)
    if config.sampler == "prioritized":
        return partial(
            PrioritizedSampler,
            priority_function=priority_function,
            alpha=config.alpha,
            beta=config.beta,
            beta_increment_per_sampling=config.beta_increment_per_sampling,
        )
    if config.sampler == "lazy":
        return partial(
            LazyPrioritizedSampler, priority_function=priority_function, uniform_fraction=config.uniform_fraction
        )
    return partial(UniformSampler)
