"""Reward streams: bonuses with a discount and a value of their own, in addition to the rewards of the environment.

The returns of a stream that crosses episodes contain the bonuses after the end of an episode, too, so that no bonus is
lost by a termination (Burda et al. 2019, arXiv 1810.12894, section 2.3). They are the returns of the executed actions
of a lane, without boundaries of episodes. In a record with T rows and the observation x_T after them:

- Row t is skipped if `Rollout.valid` is False: it is the last observation of an episode, on which no action was
  executed, or its successor is unknown. No other row depends on its bonus, its value or its ratio.
- The successor s(t) of another row is the next row that is not skipped, or T. So it is the first row of the next
  episode if row t is the last one before a termination or before a truncation.
- The discount is gamma at every row, also at a termination.
- A termination in row T-1 has no successor in the record if x_T is not the first observation of an episode. Then x_T is
  the last observation of the terminated episode, and row T-1 is not valid for the stream.

The returns that correspond to `n_step_return` are

    G_t = V_t + E_t,   E_t = valid_t (b_t + gamma V_s(t) - V_t + gamma lambda E_s(t)),   E_T = 0

with valid_t False at skipped rows, and in row T-1 in that case. Other recursions change in the same way. The recursions
are computed without a change, after `_StreamRows` has moved the skipped rows to the start, where no row precedes them.
If row T-1 does not terminate, the record does not contain whether x_T is the last observation of a truncated episode.
V_T is then the value of that observation, in place of the value of the row after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.returns.estimators import EstimatorInputs, Targets


@dataclass(frozen=True, kw_only=True)
class RewardStream:
    """The bonuses of one auxiliary as rewards that have a separate value."""

    gamma: float  # discount
    weight: float  # of the stream's advantage in the policy's; the advantage of transformed rewards has weight 1
    crosses_episodes: bool  # returns continue after the end of an episode


@dataclass(frozen=True, kw_only=True)
class StreamEstimate:
    """The values of a stream, and the estimates of its returns, [T, B] each."""

    value: Tensor  # V(x_t)
    target: Tensor  # of V(x_t); the value itself at rows that are not valid for the stream
    advantage: Tensor  # of the taken action; 0 at rows that are not valid for the stream
    valid: Tensor  # rows that are valid for the stream

    @property
    def error(self) -> Tensor:
        """Return target minus value [T, B]."""
        return self.target - self.value


def estimate_streams(
    streams: Mapping[str, RewardStream],
    bonuses: Mapping[str, Tensor],
    first: Tensor,
    alive: Tensor,
    values: Iterable[Tensor],
    inputs: EstimatorInputs,
    estimate: Callable[[EstimatorInputs], Targets],
) -> dict[str, StreamEstimate]:
    """Return the estimates of each stream by its name.

    Args:
        streams: The streams by name.
        bonuses: b [T, B] of each stream by its name.
        first: `Rollout.first` [T+1, B].
        alive: `Rollout.alive` [T, B].
        values: V(x_t) [T+1, B] of each stream, in their order.
        inputs: The estimator's inputs for the rewards of the environment. The streams have the same ratios.
        estimate: The estimator, for state values.
    """
    return {
        name: _estimate_stream(_StreamRows(stream, first, alive), bonuses[name], v, inputs, estimate)
        for (name, stream), v in zip(streams.items(), values, strict=True)
    }


def _estimate_stream(
    rows: _StreamRows,
    bonus: Tensor,
    v: Tensor,
    inputs: EstimatorInputs,
    estimate: Callable[[EstimatorInputs], Targets],
) -> StreamEstimate:
    stream_inputs = EstimatorInputs(
        reward=rows.arrange(bonus),
        discount=rows.discount,
        valid=rows.valid,
        v=rows.arrange(v),
        q_taken=rows.arrange(v[:-1]),
        rho=rows.arrange(inputs.rho),
        rho_per_dimension=rows.arrange(inputs.rho_per_dimension),
        prob_taken=lambda: rows.arrange(inputs.prob_taken()),
    )
    targets = estimate(stream_inputs)
    return StreamEstimate(
        value=v[:-1],
        target=rows.restore(targets.value_target()),
        advantage=rows.restore(targets.q_target) - v[:-1],
        valid=rows.restore(rows.valid),
    )


def add_advantages(
    advantage: Float[Tensor, "T B"], streams: Mapping[str, RewardStream], estimates: Mapping[str, StreamEstimate]
) -> Float[Tensor, "T B"]:
    """Return A + sum_i weight_i A_i, the advantage of the policy; `advantage` itself without streams.

    Args:
        advantage: A, the advantage of the environment's rewards.
        streams: The streams by name.
        estimates: The estimates of each stream by its name.
    """
    for name, stream in streams.items():
        advantage = torch.add(advantage, estimates[name].advantage, alpha=stream.weight)
    return advantage


class _StreamRows:
    """The rows of a record in the order in which a recursion reads them for a stream.

    Args:
        stream: The stream. If it does not cross episodes, the order is that of the record.
        first: `Rollout.first` [T+1, B].
        alive: `Rollout.alive` [T, B].
    """

    def __init__(self, stream: RewardStream, first: Tensor, alive: Tensor):
        self.order: Tensor | None = None  # [T, B]: the row of the record at each place
        self.valid, self.discount = ~(first[1:] & alive), stream.gamma * alive
        if stream.crosses_episodes:
            self.valid, self.order = self.valid.sort(dim=0, stable=True)  # the skipped rows are first
            # The last place is row T-1, or that row is skipped; then first[T] is True, and nothing changes.
            self.valid[-1] &= alive[-1] | first[-1]
            self.discount = torch.full_like(self.discount, stream.gamma)

    def arrange(self, x: Tensor) -> Tensor:
        """Return values [T, B] or [T+1, B] in this order. The observation after the last row stays the last."""
        if self.order is None:
            return x
        n_rows = len(self.order)
        return torch.cat((x[:n_rows].gather(0, self.order), x[n_rows:]))

    def restore(self, x: Tensor) -> Tensor:
        """Return values [T, B] of this order in the order of the record."""
        return x if self.order is None else torch.empty_like(x).scatter_(0, self.order, x)
