"""Distributions of policies: numpy for acting, closed forms in torch for learning."""

from algorithm.distributions.categorical import Categorical, CategoricalFamily, FlattenedFamily, make_flattened_family
from algorithm.distributions.distribution import (
    MASKED_LOGIT,
    MODE,
    SAMPLE,
    ClosedFormDistribution,
    DistributionFamily,
    ExportedAction,
)
from algorithm.distributions.gaussian import (
    ClippedGaussianFamily,
    FixedStdGaussian,
    Gaussian,
    TanhGaussianFamily,
)
from algorithm.distributions.joint import (
    HybridDistribution,
    HybridFamily,
    JointDistribution,
    JointFamily,
    ReparameterizedSample,
    make_family,
)

__all__ = [
    "MASKED_LOGIT",
    "MODE",
    "SAMPLE",
    "Categorical",
    "CategoricalFamily",
    "ClippedGaussianFamily",
    "ClosedFormDistribution",
    "DistributionFamily",
    "ExportedAction",
    "FixedStdGaussian",
    "FlattenedFamily",
    "Gaussian",
    "HybridDistribution",
    "HybridFamily",
    "JointDistribution",
    "JointFamily",
    "ReparameterizedSample",
    "TanhGaussianFamily",
    "make_family",
    "make_flattened_family",
]
