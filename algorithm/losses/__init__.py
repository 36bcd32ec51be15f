"""Losses as pure functions: weights, gradients and errors of single steps."""

from algorithm.losses.critic import clipped_error, cross_entropy, soft_state_value, squared_error
from algorithm.losses.policy import (
    bias_correction,
    clipped_importance,
    clipped_objective,
    leave_one_out,
    sampled_bias_correction,
    surrogate_loss,
    truncated_importance,
    trust_region_multiplier,
)

__all__ = [
    "bias_correction",
    "clipped_error",
    "clipped_importance",
    "clipped_objective",
    "cross_entropy",
    "leave_one_out",
    "sampled_bias_correction",
    "soft_state_value",
    "squared_error",
    "surrogate_loss",
    "truncated_importance",
    "trust_region_multiplier",
]
