"""Policies as distributions: sampling in numpy where agents act, closed forms in torch where they learn."""

from algorithm.distributions.categorical import Categorical
from algorithm.distributions.distribution import FORBIDDEN, Distribution, Family

__all__ = ["FORBIDDEN", "Categorical", "Distribution", "Family"]
