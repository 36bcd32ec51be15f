"""Policies as distributions: sampling in numpy where agents act, closed forms in torch where they learn."""

from algorithm.distributions.categorical import Branch, Categorical
from algorithm.distributions.distribution import FORBIDDEN, ClosedForm, Distribution, Executed, Family
from algorithm.distributions.gaussian import Clipped, Continuous, FixedGaussian, Gaussian, Squashed
from algorithm.distributions.hybrid import Conditional, Conditioned, Proposal
from algorithm.distributions.joint import Joint, Several, family_of

__all__ = [
    "FORBIDDEN",
    "Branch",
    "Categorical",
    "Clipped",
    "ClosedForm",
    "Conditional",
    "Conditioned",
    "Continuous",
    "Distribution",
    "Executed",
    "Family",
    "FixedGaussian",
    "Gaussian",
    "Joint",
    "Proposal",
    "Several",
    "Squashed",
    "family_of",
]
