"""Weights, directions and errors per step. Nothing here detaches, and but for the surrogate nothing sums over rows."""

from algorithm.losses.critic import clipped_error, squared_error
from algorithm.losses.importance import bias_correction, sampled_bias_correction, truncated_importance
from algorithm.losses.policy_gradient import surrogate_loss
from algorithm.losses.soft import soft_state_value
from algorithm.losses.trust_region import project_gradient, trust_region_multiplier

__all__ = [
    "bias_correction",
    "clipped_error",
    "project_gradient",
    "sampled_bias_correction",
    "soft_state_value",
    "squared_error",
    "surrogate_loss",
    "truncated_importance",
    "trust_region_multiplier",
]
