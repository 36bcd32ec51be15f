"""Retrace (Munos et al. 2016), and by the choice of its trace tree-backup, Q(lambda) and expected SARSA."""

from jaxtyping import Bool, Float
from torch import Tensor

from algorithm.returns.scan import reverse_scan


def retrace(
    reward: Float[Tensor, "T *B"],
    discount: Float[Tensor, "T *B"],
    valid: Bool[Tensor, "T *B"],
    q_taken: Float[Tensor, "T *B"],
    v: Float[Tensor, "T+1 *B"],
    trace: Float[Tensor, "T *B"],
    horizon: int | None = None,
) -> Float[Tensor, "T *B"]:
    """The target of Q(x_t, a_t).

        G_t = Q_t + E_t,   E_t = valid_t (r_t + d_t V_{t+1} - Q_t + d_t c_{t+1} E_{t+1})

    `discount` is gamma * alive, `trace` each row's own coefficient c_t (the shift lives here):

        lambda min(1, rho_t)   Retrace(lambda)      Munos et al. 2016, Eq. 4; Wang et al. 2017, Eq. 5 and Algorithm 2
        lambda pi(a_t|x_t)     tree-backup          Precup et al. 2000
        lambda                 Q(lambda), Q^opc     Harutyunyan et al. 2016; Wang et al. 2017, Eq. 21
        lambda rho_t           importance sampling  Precup et al. 2000
        0                      expected SARSA

    With a `horizon` no target reads more than that many rewards. A row that is not valid keeps its own Q and passes
    nothing to the rows before it.
    """
    error = valid * (reward + discount * v[1:] - q_taken)
    return q_taken + reverse_scan(error, (valid * discount)[:-1] * trace[1:], horizon)
