"""Policies as distributions: sampling in numpy where agents act, closed forms in torch where they learn."""

from algorithm.distributions.categorical import Categorical

__all__ = ["Categorical"]
