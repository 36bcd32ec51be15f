"""The one recursion under every estimator."""

import torch
from jaxtyping import Float
from torch import Tensor


def reverse_scan(a: Float[Tensor, "T *B"], b: Float[Tensor, "T-1 *B"]) -> Float[Tensor, "T *B"]:
    """The solution of y_t = a_t + b_t y_{t+1} with y_{T-1} = a_{T-1}.

    `b` has T - 1 rows, since the last row has no successor. Hillis-Steele doubling: log2(T) steps, exact and free
    of divisions, so that zeros in `b` (episode ends) are harmless.
    """
    # Before each step a_t sums the rows t .. t+reach-1, and b_t multiplies what follows them.
    rows, reach = len(a), 1
    while reach < rows:
        joined = torch.addcmul(a[:-reach], b[: rows - reach], a[reach:])
        a = torch.cat((joined, a[-reach:]))
        if 2 * reach < rows:
            b = b[:-reach] * b[reach:]
        reach *= 2
    return a
