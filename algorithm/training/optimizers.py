"""The optimizers of the parameter groups of a learner, which change flat vectors in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, nan, pi
from typing import ClassVar

import torch
from torch import Tensor

from algorithm.agents.agent import Divergence, ParameterGroup
from algorithm.distributions import ClosedFormDistribution
from algorithm.networks import FlatParameters
from algorithm.networks.flat_parameters import Place

TOLERANCE = 1e-10  # of conjugate gradients, as a fraction of the norm of the right side


@dataclass(kw_only=True, eq=False)
class Optimizer(ABC):
    """An optimizer of one group of the parameters.

    Attributes:
        name: the name of the group.
        group: the group.
        vector: its part of the flat vector.
        gradient: its part of the flat gradient.
        place: returns the tensor that other processes share in place of `moments`.
        compute_divergence: returns the divergence of the batch whose gradient is stepped along, for a natural step.
        moments: its whole state, as one flat tensor.
        gradient_norm: the norm of the last gradient before it was clipped, the same tensor in each update.
    """

    N_MOMENTS: ClassVar[tuple[int, int]]  # values in `moments` for each parameter, and in addition

    name: str
    group: ParameterGroup
    vector: Tensor
    gradient: Tensor
    place: Place = lambda tensor: tensor
    compute_divergence: Callable[[], Divergence]

    def __post_init__(self) -> None:
        per_parameter, others = self.N_MOMENTS
        size = per_parameter * len(self.vector) + others
        self.moments = self.place(torch.zeros(size, device=self.vector.device))
        self.gradient_norm = torch.full((), nan, device=self.gradient.device)

    @abstractmethod
    def step(self, rate: float) -> bool:
        """Change `vector` in place by one step with the learning rate `rate`.

        Returns:
            Whether the step is finite, given that the gradient is. If not, the whole update has to be undone.
        """

    def clip(self, checks_first: bool) -> Tensor | float:
        """Clip the gradient to the group's largest norm, and return the norm that it had.

        With `checks_first` the norm is read first, and a gradient that is short enough is not multiplied.
        """
        norm = torch.dot(self.gradient, self.gradient, out=self.gradient_norm)  # three times as fast as torch's norm
        norm.sqrt_()
        if checks_first and (short_norm := norm.item()) <= self.group.max_grad_norm:
            return short_norm
        self.gradient.div_((norm / self.group.max_grad_norm).clamp(min=1))
        return norm

    def compute_rate(self, progress: float) -> float:
        """Return the learning rate when the fraction `progress` of the run is done.

        As a fraction of the initial one it is, with f = `learning_rate_final_fraction`, linear: 1 -> f, cosine:
        f + (1 - f) (1 + cos(pi progress)) / 2 (Loshchilov & Hutter 2017, arXiv 1608.03983, Eq. 5).
        """
        final = self.group.learning_rate_final_fraction
        remaining = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + cos(pi * progress)) / 2}
        return self.group.learning_rate * (final + (1 - final) * remaining[self.group.learning_rate_schedule])

    def compute_metrics(self, progress: float) -> dict[str, Tensor]:
        """Return scalars about the step of the last gradient at `progress`, by the names of metrics."""
        prefix = f"train/{self.name.rpartition('/')[2]}"  # auxiliary/<name> -> <name>, as in its other metrics
        rate = torch.full((), self.compute_rate(progress), device=self.gradient.device)
        return {f"{prefix}_learning_rate": rate, f"{prefix}_gradient_norm": self.gradient_norm.clone()}


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1), by the operation of torch's fused optimizer.

    As `adamw`, theta <- theta - rate weight_decay theta before each step (AdamW; Loshchilov & Hutter 2019,
    arXiv 1711.05101, Algorithm 2), except for parameters that are not trained.
    `moments` are the first moments, the second moments, and the number of steps.
    """

    N_MOMENTS = (2, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        size, decay = len(self.vector), self.group.weight_decay
        self.first, self.second, self.steps = self.moments[:size], self.moments[size:-1], self.moments[-1]
        self.weight_decay: float | Tensor | None = None  # of all parameters, or of each: 0 if it is not trained
        if self.group.optimizer == "adamw":
            parameters = self.group.module.parameters()
            trained = torch.cat([torch.full((each.numel(),), float(each.requires_grad)) for each in parameters])
            self.weight_decay = decay if trained.all() else decay * trained.to(self.vector.device)

    def step(self, rate: float) -> bool:
        if self.weight_decay is not None:
            self.vector.mul_(1 - rate * self.weight_decay)
        self.steps.add_(1)
        torch._fused_adam_(
            [self.vector],
            [self.gradient],
            [self.first],
            [self.second],
            [],
            [self.steps],
            lr=rate,
            beta1=self.group.optimizer_beta1,
            beta2=self.group.optimizer_decay,
            weight_decay=0.0,
            eps=self.group.optimizer_epsilon,
            amsgrad=False,
            maximize=False,
        )
        return True


class RmsProp(Optimizer):
    """RMSprop (Tieleman & Hinton 2012): theta <- theta - rate g / (sqrt(s) + eps).

    With `epsilon_inside` the divisor is sqrt(s + eps), as in Mnih et al. 2016 and Wang et al. 2017.
    """

    N_MOMENTS = (1, 0)

    def step(self, rate: float) -> bool:
        decay, epsilon = self.group.optimizer_decay, self.group.optimizer_epsilon
        self.moments.mul_(decay).addcmul_(self.gradient, self.gradient, value=1 - decay)
        if self.group.epsilon_inside:
            denominator = (self.moments + epsilon).sqrt_()
        else:
            denominator = self.moments.sqrt().add_(epsilon)
        self.vector.addcdiv_(self.gradient, denominator, value=-rate)
        return True


class NaturalStep(Optimizer):
    """An optimizer of a policy that maximises its objective within a trust region; it has no moments.

    The learning rate is delta, the largest mean KL divergence from the average policy, in nats per row. The step solves
    the quadratic model of the trust region. It is halved until the exact divergence is at most max(delta, C), C being
    the divergence before the step, and dropped if no halving achieves this.
    """

    N_MOMENTS = (0, 0)
    _metrics: dict[str, Tensor] = {}  # of the last step

    @torch.inference_mode(False)
    def step(self, rate: float) -> bool:
        group, divergence, delta, g = self.group, self.compute_divergence(), rate, -self.gradient
        with torch.enable_grad():
            policy = divergence.compute_policy()
            fisher = FisherMatrix(policy, divergence.weights, list(group.module.parameters()), group.damping)
        with torch.no_grad():
            before = _mean_kl(policy, divergence)
            k = fisher.pull_back(divergence.weights.unsqueeze(-1) * policy.kl_gradient(divergence.average))
            u, w = (conjugate_gradient(fisher, right_side, group.cg_iterations) for right_side in (g, k))
            step = solve_trust_region(g, k, u, w, before, delta)
            if not torch.stack((before, u.sum(), w.sum())).isfinite().all():
                return False
            self._metrics = _line_search(self.vector, step, divergence, before.clamp(min=delta), group.max_halvings)
        return True

    def compute_metrics(self, progress: float) -> dict[str, Tensor]:
        return super().compute_metrics(progress) | self._metrics


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
        parts = torch.autograd.grad(policy.statistics, parameters, self._c, create_graph=True, materialize_grads=True)
        self._pulled_back = torch.cat([part.flatten() for part in parts])

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a flat vector of the size of all parameters."""
        image = self.weights * self.policy.fisher_product(self.push_forward(vector))
        return self.pull_back(image).add_(vector, alpha=self.damping)

    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J vector, in the shape of the statistics."""
        (product,) = torch.autograd.grad(self._pulled_back, self._c, vector, retain_graph=True)
        return product

    def pull_back(self, statistics: Tensor) -> Tensor:
        """Return J^T statistics as a flat vector."""
        parts = torch.autograd.grad(
            self.policy.statistics, self.parameters, statistics, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])


def conjugate_gradient(product: Callable[[Tensor], Tensor], right_side: Tensor, iterations: int) -> Tensor:
    """Return an approximate solution x of `product(x) = right_side` (Hestenes and Stiefel 1952).

    Args:
        product: the product of a symmetric positive definite matrix with a vector.
        right_side: a vector.
        iterations: the largest number of iterations, which end when the norm of the residual is at most `TOLERANCE`.
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
        if squared_norm <= TOLERANCE**2:
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


def make_optimizers(
    groups: Mapping[str, ParameterGroup],
    parameters: FlatParameters,
    compute_divergence: Callable[[], Divergence],
    place: Place,
) -> list[Optimizer]:
    """Return the optimizers of all groups, those of natural groups last.

    Args:
        groups: The groups by name.
        parameters: Their flat parameters.
        compute_divergence: See Optimizer.
        place: See Optimizer.

    Raises:
        ValueError: The optimizer of a group is unknown.
    """
    kinds: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": Adam, "rmsprop": RmsProp, "natural": NaturalStep}
    optimizers = []
    for name in sorted(groups, key=lambda name: groups[name].optimizer == "natural"):
        group, part = groups[name], parameters.group_slices[name]
        if group.optimizer not in kinds:
            raise ValueError(f"optimizer {group.optimizer!r} is unknown; there are {', '.join(kinds)}")
        optimizer = kinds[group.optimizer](
            name=name,
            group=group,
            vector=parameters.vector[part],
            gradient=parameters.gradient[part],
            place=place,
            compute_divergence=compute_divergence,
        )
        optimizers.append(optimizer)
    return optimizers
