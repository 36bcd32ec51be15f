"""Discrete branches, and numbers whose distribution depends on them: pi(d|x) pi(c|x, d)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.distributions.categorical import Categorical
from algorithm.distributions.distribution import Distribution, Executed, Family
from algorithm.distributions.gaussian import Gaussian, Squashed
from algorithm.distributions.joint import family_of


def place(chosen: Float[Tensor, "*B branches"], branches: Sequence[int]) -> Tensor:
    """Which combination the indices of each branch are [..., 1]."""
    combination = chosen.new_zeros(chosen.shape[:-1], dtype=torch.int64)
    for count, branch in zip(branches, chosen.long().unbind(-1), strict=True):
        combination = combination * count + branch
    return combination.unsqueeze(-1)


class Conditional(Distribution):
    """Independent branches, and squashed Gaussian numbers of their own for each of the K combinations of branches.

    `statistics` are the means and the logarithms of std of each combination [K * numbers, each], then the logits of
    each branch. Combinations count as their branches do, the last one fastest; without branches there is one.
    """

    def __init__(self, statistics: Float[Tensor, "*B S"], numbers: int, branches: Sequence[int]):
        self.statistics, self.numbers, self.branches = statistics, numbers, tuple(branches)
        self.combinations = math.prod(branches)
        self._width = self.combinations * numbers

    @property
    def mean(self) -> Tensor:
        """Of u [..., K, c], for every combination."""
        return self._of_numbers(slice(self._width))

    @property
    def log_std(self) -> Tensor:
        """The logarithm of the standard deviation of u [..., K, c]."""
        return self._of_numbers(slice(self._width, 2 * self._width))

    def _of_numbers(self, columns: slice) -> Tensor:
        return self.statistics[..., columns].unflatten(-1, (self.combinations, self.numbers))

    @cached_property
    def parts(self) -> list[Categorical]:
        """Each branch."""
        logits = self.statistics[..., 2 * self._width :]
        return [Categorical(branch) for branch in logits.split(self.branches, -1)] if self.branches else []

    @cached_property
    def log_probs(self) -> Tensor:
        """log pi(d) of every combination [..., K]."""
        total = self.statistics.new_zeros((*self.statistics.shape[:-1], 1))
        for branch in self.parts:
            total = (total.unsqueeze(-1) + branch.log_probs.unsqueeze(-2)).flatten(-2)
        return total

    @cached_property
    def probs(self) -> Tensor:
        """pi(d) of every combination [..., K]."""
        return self.log_probs.exp()

    def rows(self, where: slice) -> Conditional:
        part = Conditional(self.statistics[where], self.numbers, self.branches)
        part.__dict__.update(
            {name: self.__dict__[name][where] for name in ("log_probs", "probs") if name in self.__dict__}
        )
        return part

    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        log_branches, log_values = self._log_probs(sample)
        return log_branches + log_values if self.numbers else log_branches

    def executed_log_probs(self, sample: Float[Tensor, "*B size"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log pi(d) and log pi(c|d) of the executed action of a sample: c = tanh(u) (Eq. 21 of SAC)."""
        log_branches, log_values = self._log_probs(sample)
        u = sample[..., : self.numbers]
        squashing = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
        return log_branches, log_values - squashing.sum(-1)

    def _log_probs(self, sample: Float[Tensor, "*B size"]) -> tuple[Tensor, Tensor]:
        """Return log pi(d) and log N(u|d) [...] of a sample."""
        taken = place(sample[..., self.numbers :], self.branches)
        where = taken.unsqueeze(-1).expand(*taken.shape, self.numbers)
        given = [part.gather(-2, where).squeeze(-2) for part in (self.mean, self.log_std)]
        log_values = Gaussian(torch.cat(given, -1)).log_prob(sample[..., : self.numbers])
        return self.log_probs.gather(-1, taken).squeeze(-1), log_values

    @property
    def entropy(self) -> Float[Tensor, "*B"]:
        of_numbers = self.log_std.sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * self.numbers
        return (self.probs * (of_numbers - self.log_probs)).sum(-1)

    def propose(self) -> Proposal:
        """Numbers for every combination: u = m + s eps, c = tanh(u)."""
        log_std = self.log_std
        noise = torch.empty_like(log_std).normal_()
        shift = log_std.exp() * noise
        draw = self.mean + shift
        # log(1 - c^2) = 2 (log 2 - u - log(1 + exp(-2 u))), of which the constant waits.
        squashing = draw + torch.nn.functional.softplus(-2 * draw)
        density = torch.addcmul(log_std, noise, noise, value=0.5).sub(squashing, alpha=2).sum(-1)
        constant = -self.numbers * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        return Proposal(draw.tanh(), constant - density, shift)

    def soft_gradient(
        self,
        proposal: Proposal,
        value: Float[Tensor, "*B K"],
        slope: Float[Tensor, "*B K c"] | None,
        alpha: Float[Tensor, ""] | float,
    ) -> Float[Tensor, "*B S"]:
        """d/d statistics of sum_d pi(d) value_d, the values being less alpha log pi(c_d|d), as they stand.

        `slope` [..., K, c] is how they change with the executed numbers beside that; `alpha` is of the numbers.
        """
        parts = []
        if slope is not None:
            probs = self.probs.unsqueeze(-1)
            c = proposal.numbers
            # d log pi(c|d) / d u = 2 c from the squashing; that of the Gaussian is constant along u = m + s eps.
            # So along u it is slope (1 - c^2) - 2 alpha c.
            along = probs * (slope - c * (slope * c + 2 * alpha))
            parts += [along.flatten(-2), torch.addcmul(probs * alpha, along, proposal.shift).flatten(-2)]
        if self.parts:
            weight = self.probs * value
            each = weight.unflatten(-1, self.branches)
            total = weight.sum(-1, keepdim=True)
            for place, branch in enumerate(self.parts, start=-len(self.parts)):
                others = [dim for dim in range(-len(self.parts), 0) if dim != place]
                parts.append((each.sum(others) if others else each) - total * branch.probs)
        return torch.cat(parts, -1)


@dataclass(frozen=True)
class Proposal:
    """Executed numbers c for every combination d [..., K, c], and what made them."""

    numbers: Tensor
    density: Tensor  # log pi(c|d) [..., K]: log N(u) - sum log(1 - c^2) (Haarnoja et al. 2018, Eq. 21), always finite
    shift: Tensor  # u - m [..., K, c]

    def rows(self, where: slice) -> Proposal:
        """Of some rows of the leading axis."""
        return Proposal(self.numbers[where], self.density[where], self.shift[where])


class Conditioned(Family[Conditional]):
    """All policies over discrete branches, and over numbers that depend on them. Either may be missing.

    Raises ValueError for an action of no numbers at all, and for more than `MOST` combinations of branches.
    """

    MOST = 512

    def __init__(self, numbers: int, branches: Sequence[int]):
        combinations = math.prod(branches)
        if combinations > self.MOST:
            raise ValueError(
                f"there are {combinations} combinations of discrete branches {list(branches)}, each of which is "
                f"valued; at most {self.MOST} are"
            )
        self.flat = family_of(numbers, branches, Squashed, Gaussian)  # whose samples look the same
        self.choice = family_of(0, branches, Squashed, Gaussian) if branches else None
        self.given = Squashed(numbers, Gaussian) if numbers else None
        self.numbers, self.branches, self.combinations = numbers, tuple(branches), combinations
        self.size, self.dimensions, self.encoded = self.flat.size, self.flat.dimensions, self.flat.encoded
        self.width = combinations * numbers
        self.statistics = 2 * self.width + sum(branches)
        self._codes = self.codes()

    def __call__(self, statistics: Float[Tensor, "*B S"]) -> Conditional:
        return Conditional(statistics, self.numbers, self.branches)

    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        return self.flat.encode(sample)

    def encode_each(self, executed: Float[Tensor, "*B K c"]) -> Float[Tensor, "*B K encoded"]:
        """What a critic reads of executed numbers of every combination."""
        if not self.choice:
            return executed
        self._codes = self._codes.to(executed)  # once, where they are read
        return torch.cat((executed, self._codes.expand(*executed.shape[:-1], -1)), -1)

    def place(self, sample: Float[Tensor, "*B size"]) -> Tensor:
        """Which combination a sample holds [..., 1]."""
        return place(sample[..., self.numbers :], self.branches)

    def codes(self) -> Float[Tensor, "K branches"]:
        """The one-hot indices of each branch, side by side, of every combination."""
        places = torch.tensor(list(product(*map(range, self.branches))), dtype=torch.float32)
        return self.choice.encode(places) if self.choice else places

    def sample(self, statistics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        logits = statistics[:, 2 * self.width :]
        chosen = self.choice.sample(logits, rng) if self.choice else logits
        if not self.given:
            return chosen
        return np.concatenate((self.given.sample(self._given(statistics, chosen), rng), chosen), -1)

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        logits = statistics[:, 2 * self.width :]
        chosen = self.choice.mode(logits) if self.choice else logits
        if not self.given:
            return chosen
        return np.concatenate((self.given.mode(self._given(statistics, chosen)), chosen), -1)

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return self.flat.to_action(sample)

    def noisy(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        parts = [statistics[:, : 2 * self.width], statistics[:, 2 * self.width :]]
        if self.given:
            parts[0] = self.given.noisy(parts[0], level)
        if self.choice:
            parts[1] = self.choice.noisy(parts[1], level)
        return np.concatenate(parts, -1)

    def execute_draw(self, statistics: Tensor, allowed: Tensor) -> Executed:
        return self._execute(statistics, allowed, lambda family: family.execute_draw)

    def execute_mode(self, statistics: Tensor, allowed: Tensor) -> Executed:
        return self._execute(statistics, allowed, lambda family: family.execute_mode)

    def _execute(
        self, statistics: Tensor, allowed: Tensor, how: Callable[[Family], Callable[[Tensor, Tensor], Executed]]
    ) -> Executed:
        """Branches first, then the numbers of the combination that they are."""
        indices: tuple[Tensor, ...] = ()
        if self.choice:
            indices = how(self.choice)(statistics[:, 2 * self.width :], allowed).indices
        if not self.given:
            return Executed((), indices)
        given = statistics[:, : 2 * self.width].reshape(-1, 2, self.combinations, self.numbers)
        chosen = torch.ones_like(given[:, 0, :1, 0])
        for index, count in zip(indices, self.branches, strict=True):  # a sum, which any importer knows, picks the one
            hot = torch.nn.functional.one_hot(index[:, 0], count).to(statistics.dtype)
            chosen = (chosen.unsqueeze(-1) * hot.unsqueeze(-2)).flatten(1)
        given = (given * chosen.reshape(-1, 1, self.combinations, 1)).sum(2).flatten(1)
        return Executed(how(self.given)(given, allowed).continuous, indices)

    def _given(self, statistics: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Means and logarithms of std [n, 2 c] of the combinations in `chosen` [n, branches]."""
        place = np.zeros(len(chosen), np.int64)
        for count, branch in zip(self.branches, chosen.T.astype(np.int64), strict=True):
            place = place * count + branch
        pairs = statistics[:, : 2 * self.width].reshape(len(statistics), 2, self.combinations, self.numbers)
        return pairs[np.arange(len(place)), :, place].reshape(len(place), -1)
