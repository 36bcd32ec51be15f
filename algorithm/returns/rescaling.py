"""Invertible rescaling of values, which compresses large ones (Pohlen et al. 2018, arXiv 1805.11593)."""

from jaxtyping import Float
from torch import Tensor

EPSILON = 1e-3


def rescale(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, with epsilon = 0.001."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPSILON * x


def unscale(y: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return x with h(x) = y."""
    magnitude = y.abs() + 1 + EPSILON
    # (sqrt(1 + 4 epsilon m) - 1) / (2 epsilon), written without the difference, of which float32 keeps four digits.
    root = 2 * magnitude / (1 + (1 + 4 * EPSILON * magnitude).sqrt())
    return y.sign() * (root.square() - 1)
