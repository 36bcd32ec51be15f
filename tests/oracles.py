"""Second derivations in plain Python and float64, for comparison only: slow, literal, and sharing no code."""

from __future__ import annotations

import numpy as np


def reverse_loop(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """y_t = a_t + b_t y_{t+1}, one row after the other."""
    y = np.array(a, dtype=np.float64)
    for t in range(len(a) - 2, -1, -1):
        y[t] = a[t] + b[t] * y[t + 1]
    return y


def retrace_by_definition(
    reward: np.ndarray,
    alive: np.ndarray,
    first: np.ndarray,
    gamma: float,
    q_taken: np.ndarray,
    v: np.ndarray,
    trace: np.ndarray,
) -> np.ndarray:
    """Retrace as the sum of Munos et al. 2016, Eq. 3, for each episode alone; NaN where a row cannot be learned.

        G_t = Q_t + sum_{k >= t} gamma^{k-t} (c_{t+1} ... c_k) (r_k + gamma V_{k+1} - Q_k)

    All arrays are [T, B] except `first` and `v` [T+1, B]. Columns are cut where an episode starts, and only what lies
    inside the piece is looked at.
    """
    target = np.full(np.shape(reward), np.nan)
    rows, columns = target.shape
    for b in range(columns):
        starts = [0, *(t for t in range(1, rows + 1) if first[t, b])]
        for start, stop in zip(starts, [*starts[1:], rows + 1], strict=True):
            # Observations start .. stop-1 belong to this episode; the last of them has no successor.
            steps = slice(start, min(stop, rows))
            target[steps, b] = _episode(
                reward[steps, b], alive[steps, b], gamma, q_taken[steps, b], v[start:stop, b], trace[steps, b]
            )
    return target


def _episode(reward, alive, gamma, q_taken, v, trace) -> list[float]:
    """The targets of one episode given its own rows only; `v` may have one more row than the others."""
    errors = []
    for k in range(len(reward)):
        if not alive[k]:
            errors.append(reward[k] - q_taken[k])
            break
        if k + 1 == len(v):
            break
        errors.append(reward[k] + gamma * v[k + 1] - q_taken[k])
    targets = [
        q_taken[t] + sum(gamma ** (k - t) * np.prod(trace[t + 1 : k + 1]) * errors[k] for k in range(t, len(errors)))
        for t in range(len(errors))
    ]
    return targets + [float("nan")] * (len(reward) - len(errors))


def softmax(logits: np.ndarray) -> np.ndarray:
    """pi(a) over the last axis."""
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits, -1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def discounted_returns(
    reward: np.ndarray, first: np.ndarray, gamma: float, joined: bool, before: float
) -> tuple[list[float], float]:
    """The running discounted return of one lane over one column, and what the next column goes on from."""
    running = before if joined else 0.0
    seen = []
    for t in range(len(reward)):
        if first[t]:
            running = 0.0
        running = gamma * running + float(reward[t])
        seen.append(running)
    return seen, running
