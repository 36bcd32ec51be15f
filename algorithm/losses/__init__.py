"""Weights, directions and errors per step. Nothing here detaches, and but for the surrogate nothing sums over rows."""

from algorithm.losses.critic import clipped_error, squared_error
from algorithm.losses.importance import bias_correction, sampled_bias_correction, truncated_importance
from algorithm.losses.policy_gradient import surrogate
from algorithm.losses.soft import soft_value
from algorithm.losses.trust_region import multiplier, project_gradient

__all__ = [
    "bias_correction",
    "clipped_error",
    "multiplier",
    "project_gradient",
    "sampled_bias_correction",
    "soft_value",
    "squared_error",
    "surrogate",
    "truncated_importance",
]
