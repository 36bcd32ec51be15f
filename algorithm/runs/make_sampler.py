"""Which sampler the settings of a replay name, and with what."""

from __future__ import annotations

from functools import partial

from algorithm.config.schema import ReplayConfig
from algorithm.replay import Lazy, Prioritized, Rating, Sampler, Uniform


def make_sampler(config: ReplayConfig) -> partial[Sampler]:
    """A sampler that lacks only its windows."""
    rating = Rating(config.max_error_weight, config.td_error_min, config.td_error_max)
    if config.sampler == "prioritized":
        return partial(
            Prioritized,
            rating=rating,
            alpha=config.alpha,
            beta=config.beta,
            beta_increment_per_sampling=config.beta_increment_per_sampling,
        )
    if config.sampler == "lazy":
        return partial(Lazy, rating=rating, uniform_fraction=config.uniform_fraction)
    return partial(Uniform)
