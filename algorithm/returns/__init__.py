"""Returns as pure functions over time-major tensors, and the table of the estimators made of them."""

from algorithm.estimators import ESTIMATORS, Estimator, find_estimators, get_estimator
from algorithm.returns.distributional_retrace import DISTRIBUTIONAL_ESTIMATORS, RetraceInputs, Support
from algorithm.returns.estimators import (
    EstimatorInputs,
    Targets,
    TraceClipping,
    n_step_return,
    rescale,
    retrace,
    reverse_scan,
    sum_rewards,
    unscale,
    vtrace,
)
from algorithm.returns.streams import RewardStream, StreamEstimate, add_advantages, estimate_streams

__all__ = [
    "DISTRIBUTIONAL_ESTIMATORS",
    "ESTIMATORS",
    "Estimator",
    "EstimatorInputs",
    "RetraceInputs",
    "RewardStream",
    "StreamEstimate",
    "Support",
    "Targets",
    "TraceClipping",
    "add_advantages",
    "estimate_streams",
    "find_estimators",
    "get_estimator",
    "n_step_return",
    "rescale",
    "retrace",
    "reverse_scan",
    "sum_rewards",
    "unscale",
    "vtrace",
]
