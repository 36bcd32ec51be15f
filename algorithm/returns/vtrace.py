"""V-trace (Espeholt et al. 2018)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithm.returns.scan import reverse_scan


def vtrace(
    reward: Float[Tensor, "T *B"],
    discount: Float[Tensor, "T *B"],
    valid: Bool[Tensor, "T *B"],
    v: Float[Tensor, "T+1 *B"],
    rho: Float[Tensor, "T *B"],
    trace: Float[Tensor, "T *B"],
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> tuple[Float[Tensor, "T *B"], Float[Tensor, "T *B"]]:
    """The target of V(x_t), and an estimate of Q(x_t, a_t).

        v_t = V_t + E_t,   E_t = valid_t (rho_t (r_t + d_t V_{t+1} - V_t) + d_t lambda c_t E_{t+1})
        q_t = r_t + d_t (V_{t+1} + lambda E_{t+1})

    `discount` is gamma * alive, `rho` the ratio truncated at rho-bar, `trace` the one truncated at c-bar (Eq. 1,
    Remark 1). q_t holds no ratio of its own row: v_t is the target of a state's value and wrong for that of an action.
    With a `horizon` neither reads more than that many rewards. A row that is not valid has V_t for both and passes
    nothing to the rows before it.
    """
    error = valid * (reward + discount * v[1:] - v[:-1])
    decayed_discount = valid * discount * trace_lambda
    terms = (rho * error, (decayed_discount * trace)[:-1])
    correction = reverse_scan(*terms, horizon)
    shorter_correction = correction if horizon is None else reverse_scan(*terms, horizon - 1)
    next_correction = torch.cat((shorter_correction[1:], torch.zeros_like(shorter_correction[:1])))
    return v[:-1] + correction, v[:-1] + error + decayed_discount * next_correction
