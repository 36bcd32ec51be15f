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
    reach = 1
    while reach < len(a):
        a = torch.cat((torch.addcmul(a[:-reach], b[: len(a) - reach], a[reach:]), a[-reach:]))
        b = b[:-reach] * b[reach:]
        reach *= 2
    return a
