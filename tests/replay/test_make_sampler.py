import numpy as np
import pytest

from algorithm.config.loader import read_assignments, resolve
from algorithm.replay import LazyPrioritizedSampler, PrioritizedSampler, PriorityFunction, UniformSampler, make_sampler
from algorithm.replay.ring import Ring
from algorithm.replay.sampler import Sequences

GIVEN = [
    "alpha=0.3",
    "beta=0.2",
    "beta_increment_per_sampling=0.1",
    "td_error_min=0.02",
    "td_error_max=5",
    "max_error_weight=0.4",
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("uniform", UniformSampler), ("Prioritized", PrioritizedSampler), ("lazy", LazyPrioritizedSampler)],
)
def test_the_settings_of_a_replay_are_passed_to_its_sampler(name, kind):
    assignments = [f"replay_config.{each}" for each in (*GIVEN, "uniform_fraction=0.25", f"sampler={name}")]
    sampler = make_sampler(resolve([("test", read_assignments(assignments))]).replay)(Sequences(Ring(40, 2, 5), 4))
    assert type(sampler) is kind
    if kind is not UniformSampler:
        assert sampler.priority_function == PriorityFunction(max_error_weight=0.4, td_error_min=0.02, td_error_max=5)
        assert sampler.priority_function(np.array([[1.0], [0.5]])) == pytest.approx(0.4 + 0.6 * 0.5)
    if kind is PrioritizedSampler:
        assert (sampler.alpha, sampler.beta, sampler.beta_increment) == (0.3, 0.2, 0.1)
    if kind is LazyPrioritizedSampler:
        assert sampler.uniform_fraction == 0.25
