"""n-step returns, and with a decay the advantage estimation of Schulman et al. 2016."""

from jaxtyping import Bool, Float
from torch import Tensor

from algorithm.returns.scan import reverse_scan


def n_step_return(
    reward: Float[Tensor, "T *B"],
    discount: Float[Tensor, "T *B"],
    valid: Bool[Tensor, "T *B"],
    v: Float[Tensor, "T+1 *B"],
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> Float[Tensor, "T *B"]:
    """The discounted rewards of the next `horizon` rows and the value behind them, without any correction.

        G_t = V_t + E_t,   E_t = valid_t (r_t + d_t V_{t+1} - V_t + d_t lambda E_{t+1})

    `discount` is gamma * alive. With decay 1 the n-step return of Mnih et al. 2016 (Algorithm S3); with decay lambda
    V_t + GAE(lambda), Schulman et al. 2016, Eq. 16. Without `horizon` it runs to the end of the record. A row that is
    not valid keeps its own V and passes nothing to the rows before it.
    """
    error = valid * (reward + discount * v[1:] - v[:-1])
    trace = (valid * discount * trace_lambda)[:-1]
    return v[:-1] + reverse_scan(error, trace, horizon)
