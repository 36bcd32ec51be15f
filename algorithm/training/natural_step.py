"""The natural step: a policy's step in a trust region on the exact KL divergence, around its average policy.

It is the step of trust region policy optimization (Schulman et al. 2015, arXiv 1502.05477, section 6 and appendix C),
with the region around an average policy instead of the current one:

    C(theta) = 1/N sum_t KL[pi_avg(x_t) || pi_theta(x_t)],   k = dC/dtheta,   g = gradient of the objective
    maximise  g.step   subject to   C + k.step + 1/2 step.F step <= delta

F is the Fisher matrix of the policy's parameters. Where the average policy equals the policy, C and k are 0, and the
step is TRPO's, sqrt(2 delta / g.F^-1 g) F^-1 g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from algorithm.agents.agent import Divergence, ParameterGroup
from algorithm.distributions import ClosedFormDistribution
from algorithm.training.optimizers import Optimizer


class NaturalStep(Optimizer):
    """An optimizer of a policy that maximises its objective within a trust region; it has no moments.

    The learning rate is delta, the largest mean KL divergence from the average policy, in nats per row. The step solves
    the quadratic model of the trust region. It is halved until the exact divergence is at most max(delta, C), C being
    the divergence before the step, and dropped if no halving achieves this.

    Args:
        group: the group of the policy's parameters.
        compute_divergence: returns the divergence of the batch whose gradient is stepped along.
    """

    def __init__(self, group: ParameterGroup, compute_divergence: Callable[[], Divergence]):
        self.group, self.compute_divergence = group, compute_divergence
        self.parameters = list(group.module.parameters())
        self.moments = self.parameters[0].new_empty(0)
        self._metrics: dict[str, Tensor] = {}

    def metrics(self) -> dict[str, Tensor]:
        return self._metrics

    @torch.inference_mode(False)
    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        group, divergence, delta, g = self.group, self.compute_divergence(), rate, -gradient
        with torch.enable_grad():
            policy = divergence.compute_policy()
            fisher = FisherMatrix(policy, divergence.weights, self.parameters, group.damping)
        with torch.no_grad():
            before = _mean_kl(policy, divergence)
            k = fisher.pull_back(divergence.weights.unsqueeze(-1) * policy.kl_gradient(divergence.average))
            u, w = (conjugate_gradient(fisher, right_side, group.cg_iterations) for right_side in (g, k))
            step = solve_trust_region(g, k, u, w, before, delta)
            if not torch.stack((before, u.sum(), w.sum())).isfinite().all():
                return False
            self._metrics = _line_search(vector, step, divergence, before.clamp(min=delta), group.max_halvings)
        return True


class FisherMatrix:
    """The Fisher matrix of a policy's parameters, J^T M J + damping I, as a product with vectors.

    J is the Jacobian of the statistics of all rows with respect to the parameters, M the Fisher matrix of each row's
    distribution in closed form, times the row's weight. The product equals that with the second derivative of the mean
    of KL[policy || other] with respect to the parameters of `other`, where both are equal, plus damping.

    Args:
        policy: the distributions at [T, B] rows, with gradient.
        weights: weights [T, B] of the rows.
        parameters: the parameters.
        damping: added to the diagonal.
    """

    def __init__(self, policy: ClosedFormDistribution, weights: Tensor, parameters: Sequence[Tensor], damping: float):
        self.policy, self.weights, self.parameters, self.damping = policy, weights.unsqueeze(-1), parameters, damping
        # J^T c is linear in c, so that its derivative with respect to c in the direction v is J v, for any c.
        self._c = torch.zeros_like(policy.statistics, requires_grad=True)
        self._pulled_back = torch.autograd.grad(
            policy.statistics, parameters, self._c, create_graph=True, materialize_grads=True
        )

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a flat vector of the size of all parameters."""
        image = self.weights * self.policy.fisher_product(self.push_forward(vector))
        return self.pull_back(image).add_(vector, alpha=self.damping)

    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J vector, in the shape of the statistics."""
        sizes = [parameter.numel() for parameter in self.parameters]
        pairs = zip(self._pulled_back, self.parameters, vector.split(sizes), strict=True)
        used = [(part, piece.view_as(parameter)) for part, parameter, piece in pairs if part.requires_grad]
        outputs, pieces = zip(*used, strict=True)
        (product,) = torch.autograd.grad(outputs, self._c, pieces, retain_graph=True)
        return product

    def pull_back(self, statistics: Tensor) -> Tensor:
        """Return J^T statistics as a flat vector."""
        parts = torch.autograd.grad(
            self.policy.statistics, self.parameters, statistics, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], right_side: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """Return an approximate solution x of `product(x) = right_side` (Hestenes and Stiefel 1952).

    Args:
        product: the product of a symmetric positive definite matrix with a vector.
        right_side: a vector.
        iterations: the largest number of iterations.
        tolerance: the norm of the residual at which the iterations end, as a fraction of the norm of `right_side`.
    """
    norm = right_side.dot(right_side).sqrt()
    if norm == 0:
        return right_side.clone()
    residual = right_side / norm  # otherwise the squares of small vectors would underflow
    solution, direction, squared_norm = torch.zeros_like(residual), residual.clone(), residual.dot(residual)
    for _ in range(iterations):
        image = product(direction)
        rate = squared_norm / direction.dot(image)
        solution.add_(rate * direction)
        residual.sub_(rate * image)
        previous, squared_norm = squared_norm, residual.dot(residual)
        if squared_norm <= tolerance**2:
            break
        direction = torch.addcmul(residual, squared_norm / previous, direction)
    return norm * solution


def solve_trust_region(g: Tensor, k: Tensor, u: Tensor, w: Tensor, divergence: Tensor | float, delta: float) -> Tensor:
    """Return the step that maximises g.step subject to C + k.step + 1/2 step.F step <= delta.

    If no step satisfies the constraint, the result is the recovery step, which minimises the left side. Without an
    objective (g = 0) there is no step unless C is above delta.

    Args:
        g: gradient of the objective.
        k: gradient of the divergence.
        u: F^-1 g.
        w: F^-1 k.
        divergence: C.
        delta: limit of the divergence.
    """
    budget, slope = 2 * (delta - divergence) + k.dot(w), g.dot(u)
    if budget > 0 and slope > 0:
        return u * (budget / slope).sqrt() - w  # u / lambda - w, lambda = sqrt(slope / budget)
    return -w if divergence > delta else torch.zeros_like(w)


def _line_search(
    vector: Tensor, step: Tensor, divergence: Divergence, limit: Tensor, max_halvings: int
) -> dict[str, Tensor]:
    """Add to `vector` the first of `step`, `step` / 2, `step` / 4, ... after which C is at most `limit`.

    Returns:
        The metrics of the search. `vector` is as before if no step is accepted.
    """
    start = vector.clone()
    for halvings in range(max_halvings + 1):
        torch.add(start, step, alpha=0.5**halvings, out=vector)
        after = _mean_kl(divergence.compute_policy(), divergence)
        is_accepted = bool(after <= limit)
        if is_accepted:
            break
    else:
        vector.copy_(start)
        after = _mean_kl(divergence.compute_policy(), divergence)
    numbers = {"train/kl_after_step": after, "train/accepted_steps": is_accepted, "train/step_halvings": halvings}
    return {name: torch.as_tensor(number, dtype=after.dtype) for name, number in numbers.items()}


def _mean_kl(policy: ClosedFormDistribution, divergence: Divergence) -> Tensor:
    """Return C, the mean KL divergence of `policy` from the average policy."""
    return (divergence.weights * policy.kl(divergence.average)).sum()
