"""The optimizers of flat vectors, in place, and the steps of the parameter groups of a learner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, nan, pi

import torch
from torch import Tensor

from algorithm.agents.agent import Divergence, ParameterGroup
from algorithm.distributions import ClosedFormDistribution
from algorithm.networks import FlatParameters
from algorithm.networks.flat_parameters import Place


class Optimizer(ABC):
    """An optimizer of a flat vector; `moments` is its whole state, as one flat tensor."""

    moments: Tensor

    def use_moments(self, moments: Tensor) -> None:
        """Use a tensor, perhaps one that other processes share, as `moments`."""
        self.moments = moments

    @abstractmethod
    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        """Change `vector` in place by one step with the learning rate `rate`.

        Returns:
            Whether the step is finite, given that the gradient is. If not, the whole update has to be undone.
        """

    def metrics(self) -> dict[str, Tensor]:
        """Return scalars about the last step, by the names of metrics. The default returns none."""
        return {}


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1), by the operation of torch's fused optimizer.

    With `weight_decay`, theta <- theta - rate weight_decay theta before each step (AdamW; Loshchilov & Hutter 2019,
    arXiv 1711.05101, Algorithm 2). It is one number for all parameters of the vector, or one for each.
    `moments` are the first moments, the second moments, and the number of steps.
    """

    def __init__(
        self,
        size: int,
        device: torch.device,
        decay: float,
        epsilon: float,
        beta1: float = 0.9,
        weight_decay: float | Tensor | None = None,
    ):
        self.size, self.beta1, self.decay, self.epsilon = size, beta1, decay, epsilon
        self.weight_decay = weight_decay
        self.use_moments(torch.zeros(2 * size + 1, device=device))

    def use_moments(self, moments: Tensor) -> None:
        self.moments = moments
        self.first, self.second, self.steps = moments[: self.size], moments[self.size : -1], moments[-1]

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        if self.weight_decay is not None:
            vector.mul_(1 - rate * self.weight_decay)
        self.steps.add_(1)
        torch._fused_adam_(
            [vector],
            [gradient],
            [self.first],
            [self.second],
            [],
            [self.steps],
            lr=rate,
            beta1=self.beta1,
            beta2=self.decay,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )
        return True


class RmsProp(Optimizer):
    """RMSprop (Tieleman & Hinton 2012): theta <- theta - rate g / (sqrt(s) + eps).

    With `epsilon_inside` the divisor is sqrt(s + eps), as in Mnih et al. 2016 and Wang et al. 2017.
    """

    def __init__(self, size: int, device: torch.device, decay: float, epsilon: float, epsilon_inside: bool):
        self.moments = torch.zeros(size, device=device)
        self.decay, self.epsilon, self.epsilon_inside = decay, epsilon, epsilon_inside

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        self.moments.mul_(self.decay).addcmul_(gradient, gradient, value=1 - self.decay)
        if self.epsilon_inside:
            denominator = (self.moments + self.epsilon).sqrt_()
        else:
            denominator = self.moments.sqrt().add_(self.epsilon)
        vector.addcdiv_(gradient, denominator, value=-rate)
        return True


def make_optimizer(group: ParameterGroup, size: int, device: torch.device) -> Optimizer:
    """Return the optimizer of a parameter group of `size` parameters. Raises ValueError for an unknown name."""
    common = size, device, group.optimizer_decay, group.optimizer_epsilon
    if group.optimizer in ("adam", "adamw"):
        weight_decay = _make_weight_decay(group, device) if group.optimizer == "adamw" else None
        return Adam(*common, group.optimizer_beta1, weight_decay)
    if group.optimizer == "rmsprop":
        return RmsProp(*common, group.epsilon_inside)
    raise ValueError(f"optimizer {group.optimizer!r} is unknown; there are adam, adamw and rmsprop")


def _make_weight_decay(group: ParameterGroup, device: torch.device) -> float | Tensor:
    """Return the weight decay of a group, which is 0 for parameters that are not trained."""
    parameters = list(group.module.parameters())
    if all(parameter.requires_grad for parameter in parameters):
        return group.weight_decay
    trained = [torch.full((parameter.numel(),), float(parameter.requires_grad)) for parameter in parameters]
    return group.weight_decay * torch.cat(trained).to(device)


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


def compute_rate_scale(group: ParameterGroup, progress: float) -> float:
    """Return the learning rate of a group, as a fraction of its initial one.

    linear: 1 -> f, cosine: f + (1 - f) (1 + cos(pi progress)) / 2 (Loshchilov & Hutter 2017, arXiv 1608.03983, Eq. 5),
    with f = `learning_rate_final_fraction`.

    Args:
        group: The group.
        progress: The fraction of the run that is done.
    """
    final = group.learning_rate_final_fraction
    remaining = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + cos(pi * progress)) / 2}
    return final + (1 - final) * remaining[group.learning_rate_schedule]


@dataclass(kw_only=True)
class OptimizerStep:
    """The step of one group of the parameters: its slices of the flat vector and gradient, and its optimizer."""

    name: str
    group: ParameterGroup
    vector: Tensor
    gradient: Tensor
    optimizer: Optimizer

    def __post_init__(self) -> None:
        # Of the last gradient, before it was clipped; the same tensor in each update.
        self.gradient_norm = torch.full((), nan, device=self.gradient.device)

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

    def __call__(self, progress: float) -> bool:
        """Step the group, and return whether the step is finite.

        `progress` is the fraction of the run that is done.
        """
        return self.optimizer.step(self.vector, self.gradient, self._compute_rate(progress))

    def compute_metrics(self, progress: float) -> dict[str, Tensor]:
        """Return scalars about the step of the last gradient at `progress`, by the names of metrics."""
        prefix = f"train/{self.name.rpartition('/')[2]}"  # auxiliary/<name> -> <name>, as in its other metrics
        rate = torch.full((), self._compute_rate(progress), device=self.gradient.device)
        return {
            f"{prefix}_learning_rate": rate,
            f"{prefix}_gradient_norm": self.gradient_norm.clone(),
            **self.optimizer.metrics(),
        }

    def _compute_rate(self, progress: float) -> float:
        return self.group.learning_rate * compute_rate_scale(self.group, progress)


def make_optimizer_steps(
    groups: Mapping[str, ParameterGroup],
    parameters: FlatParameters,
    compute_divergence: Callable[[], Divergence],
    device: torch.device,
    place: Place,
) -> list[OptimizerStep]:
    """Return the steps of all groups, those of natural groups last.

    Args:
        groups: The groups by name.
        parameters: Their flat parameters.
        compute_divergence: See NaturalStep.
        device: The device of the parameters.
        place: Returns the tensor that other processes share in place of the moments of an optimizer.
    """
    steps = []
    for name in sorted(groups, key=lambda name: groups[name].optimizer == "natural"):
        group, part = groups[name], parameters.group_slices[name]
        vector, gradient = parameters.vector[part], parameters.gradient[part]
        if group.optimizer == "natural":
            optimizer: Optimizer = NaturalStep(group, compute_divergence)
        else:
            optimizer = make_optimizer(group, len(vector), device)
        optimizer.use_moments(place(optimizer.moments))
        steps.append(OptimizerStep(name=name, group=group, vector=vector, gradient=gradient, optimizer=optimizer))
    return steps
