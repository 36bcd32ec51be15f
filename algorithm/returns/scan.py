"""The one recursion under every estimator."""

import torch
from jaxtyping import Float
from torch import Tensor


def reverse_scan(
    a: Float[Tensor, "T *B"], b: Float[Tensor, "T-1 *B"], horizon: int | None = None
) -> Float[Tensor, "T *B"]:
    """The solution of y_t = a_t + b_t y_{t+1} with y_{T-1} = a_{T-1}, or its terms of the next `horizon` rows alone.

    `b` has T - 1 rows, since the last row has no successor. Hillis-Steele doubling: log2(T) steps, exact and free
    of divisions, so that zeros in `b` (episode ends) are harmless.
    """
    if horizon is not None and horizon < len(a):
        y = torch.zeros_like(a)
        for _ in range(horizon):
            y = torch.cat((a[:-1] + b * y[1:], a[-1:]))
        return y
    # Before each step a_t sums the rows t .. t+reach-1, and b_t multiplies what follows them, if anything does.
    rows, reach = len(a), 1
    while reach < rows:
        merged = torch.addcmul(a[:-reach], b, a[reach:])
        a = torch.cat((merged, a[-reach:]))
        if 2 * reach < rows:
            b = b[:-reach] * b[reach:]
        reach *= 2
    return a
