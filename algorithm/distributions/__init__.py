"""Policies as distributions: sampling in numpy where agents act, closed forms in torch where they learn."""

from algorithm.distributions.categorical import Branch, Categorical
from algorithm.distributions.distribution import FORBIDDEN, Distribution, Executed, Family
from algorithm.distributions.gaussian import Clipped, Continuous, FixedGaussian, Gaussian, Squashed
from algorithm.distributions.joint import Joint, Several, family_of

__all__ = [
    "FORBIDDEN",
    "Branch",
    "Categorical",
    "Clipped",
    "Continuous",
    "Distribution",
    "Executed",
    "Family",
    "FixedGaussian",
    "Gaussian",
    "Joint",
    "Several",
    "Squashed",
    "family_of",
]
