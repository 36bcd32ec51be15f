"""The efficient trust region (Wang et al. 2017, Eq. 10-12): per row, never on a mean over rows.

    maximise  g.z - 1/2 |g - z|^2   subject to   k.z <= delta

with g the ascent gradient and k the gradient of KL[average || policy], both with respect to the same statistics.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def trust_region_multiplier(
    gradient: Float[Tensor, "*B S"], kl_gradient: Float[Tensor, "*B S"], delta: float
) -> Float[Tensor, "*B 1"]:
    """max(0, (k.g - delta) / |k|^2): how much of k is taken away; above 0 exactly where the constraint binds."""
    excess = (kl_gradient * gradient).sum(-1, keepdim=True) - delta
    norm = kl_gradient.square().sum(-1, keepdim=True)
    return excess.clamp(min=0) / norm.clamp(min=torch.finfo(norm.dtype).tiny)


def project_gradient(
    gradient: Float[Tensor, "*B S"], kl_gradient: Float[Tensor, "*B S"], delta: float
) -> Float[Tensor, "*B S"]:
    """z = g - max(0, (k.g - delta) / |k|^2) k (Wang et al. 2017, Eq. 12); z = g where k = 0."""
    return gradient - trust_region_multiplier(gradient, kl_gradient, delta) * kl_gradient
