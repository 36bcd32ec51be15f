"""Independent implementations in plain Python and float64 for comparison: slow, literal, without shared code."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def tensor(*values) -> Tensor:
    """Return numbers as a tensor in float64."""
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    """Assert that two tensors are equal up to an absolute difference."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def reverse_loop(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve y_t = a_t + b_t y_{t+1} in a loop over rows."""
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
    horizon: int | None = None,
) -> np.ndarray:
    """Return Retrace as the sum of Munos et al. 2016, Eq. 3, for each episode alone; NaN for invalid rows.

        G_t = Q_t + sum_{k >= t} gamma^{k-t} (c_{t+1} ... c_k) (r_k + gamma V_{k+1} - Q_k)

    All arrays are [T, B] except `first` and `v` [T+1, B]. Each episode is computed separately, from its own rows, with
    at most `horizon` rewards.
    """
    target = np.full(np.shape(reward), np.nan)
    for steps, observed, b in _episodes(first):
        error = _errors(reward[steps, b], alive[steps, b], gamma, q_taken[steps, b], v[observed, b])
        q, c = q_taken[steps, b], trace[steps, b]
        for t in range(len(error)):
            stop = min(len(error), t + (horizon or len(error)))
            terms = (gamma ** (k - t) * np.prod(c[t + 1 : k + 1]) * error[k] for k in range(t, stop))
            target[steps.start + t, b] = q[t] + sum(terms)
    return target


def vtrace_by_definition(
    reward: np.ndarray,
    alive: np.ndarray,
    first: np.ndarray,
    gamma: float,
    v: np.ndarray,
    rho: np.ndarray,
    trace: np.ndarray,
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return V-trace as the sum of Espeholt et al. 2018, Eq. 1, and r + gamma (V' + lambda (v' - V')), by episode.

        v_t = V_t + sum_{k >= t} (gamma lambda)^{k-t} (c_t ... c_{k-1}) rho_k (r_k + gamma V_{k+1} - V_k)

    `rho` and `trace` [T, B] are already truncated; with both 1 it is the n-step return. The sum has `horizon` errors,
    including the row itself.
    """
    target, estimate = np.full((2, *np.shape(reward)), np.nan)
    discount = gamma * trace_lambda
    for steps, observed, b in _episodes(first):
        error = _errors(reward[steps, b], alive[steps, b], gamma, v[steps, b], v[observed, b])
        rewards = horizon or len(error)
        own, following = (_sums(error, discount, rho[steps, b], trace[steps, b], n) for n in (rewards, rewards - 1))
        for t, row in enumerate(range(steps.start, steps.start + len(error))):
            target[row, b] = v[row, b] + own[t]
            estimate[row, b] = v[row, b] + error[t] + discount * following[t + 1]
    return target, estimate


def soft_vtrace_by_definition(
    reward: np.ndarray,
    alive: np.ndarray,
    first: np.ndarray,
    gamma: float,
    v: np.ndarray,
    rho: np.ndarray,
    trace: np.ndarray,
    cost: np.ndarray,
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> np.ndarray:
    """Return the target of a soft Q(x_t, a_t) as a forward sum over each episode; NaN for invalid rows.

        G_t = r_t + gamma V_{t+1}
              + sum_{t < k < t + horizon} (gamma lambda)^{k-t} (c_{t+1} ... c_{k-1}) rho_k
                (r_k - cost_k + gamma V_{k+1} - V_k)

    V is the soft value of a state, `cost` [T, B] is alpha log pi(a_k|x_k): the soft Bellman equation is
    V(x) = E[r - cost + gamma V(x')], and Q(x, a) = E[r + gamma V(x')] (Haarnoja et al. 2018, Eq. 2-3).
    """
    target = np.full(np.shape(reward), np.nan)
    discount = gamma * trace_lambda
    for steps, observed, b in _episodes(first):
        states = v[observed, b]
        own = _errors(reward[steps, b], alive[steps, b], gamma, np.zeros(len(reward)), states)
        for t in range(len(own)):
            stop = min(len(own), t + (horizon or len(own)))
            c = trace[steps, b]
            weight = rho[steps, b]
            terms = [
                discount ** (k - t) * np.prod(c[t + 1 : k]) * weight[k] * (own[k] - cost[steps, b][k] - states[k])
                for k in range(t + 1, stop)
            ]
            target[steps.start + t, b] = own[t] + sum(terms)
    return target


def compute_hats(position: np.ndarray | float, atoms: np.ndarray) -> np.ndarray:
    """Return h_i(y) = [1 - |clip(y, z_1, z_N) - z_i| / Dz]_+ of each atom [..., N], for positions y [...]."""
    clipped = np.clip(np.asarray(position), atoms[0], atoms[-1])
    return np.maximum(0, 1 - np.abs(clipped[..., None] - atoms) / (atoms[1] - atoms[0]))


def distributional_retrace_by_definition(
    reward: np.ndarray,
    alive: np.ndarray,
    first: np.ndarray,
    gamma: float,
    atoms: np.ndarray,
    probs: np.ndarray,
    q: np.ndarray,
    taken: np.ndarray,
    trace: np.ndarray,
) -> np.ndarray:
    """Return the sum over n and a of alpha_{n,a} (Gruslys et al. 2018, section 3.2) [T, B, N]; NaN for invalid rows.

    Arrays are [T, B] except `first` [T+1, B], the policy `probs` [T+1, B, A], and the distributions `q` [T+1, B, A, N].
    """
    valid, rows = ~(first[1:] & alive), len(reward)
    target = np.full((*reward.shape, len(atoms)), np.nan)
    for t, b in np.argwhere(valid):
        result, weight, total, discount, s = np.zeros(len(atoms)), 1.0, 0.0, 1.0, t
        while weight:
            total, discount = total + discount * reward[s, b], discount * gamma
            if not alive[s, b]:
                result += weight * compute_hats(total, atoms)
                break
            s += 1
            c = trace[s, b] if s < rows and valid[s, b] else 0.0
            for a, prob in enumerate(probs[s, b]):
                alpha = weight * (prob - c * (s < rows and a == taken[min(s, rows - 1), b]))
                for z, mass in zip(atoms, q[s, b, a], strict=True):
                    result += alpha * mass * compute_hats(total + discount * z, atoms)
            weight *= c
        target[t, b] = result
    return target


def _sums(error, discount, rho, trace, horizon) -> list[float]:
    """Return sum_k (c_t ... c_{k-1}) rho_k error_k, discounted, for each row, and a final 0."""
    rows = range(len(error))
    terms = [
        [discount ** (k - t) * np.prod(trace[t:k]) * rho[k] * error[k] for k in rows if t <= k < t + horizon]
        for t in rows
    ]
    return [*map(sum, terms), 0.0]


def _episodes(first: np.ndarray):
    """Yield each episode's rows, its observations (one more if its end is in the record), and its column."""
    rows, columns = first.shape[0] - 1, first.shape[1]
    for b in range(columns):
        starts = [0, *(t for t in range(1, rows + 1) if first[t, b])]
        for start, stop in zip(starts, [*starts[1:], rows + 1], strict=True):
            # Observations start .. stop-1 belong to this episode; the last of them has no successor.
            if start < rows:
                yield slice(start, min(stop, rows)), slice(start, stop), b


def _errors(reward, alive, gamma, base, v) -> list[float]:
    """Return the one-step errors against `base` of the valid rows of one episode."""
    errors = []
    for k in range(len(reward)):
        if not alive[k]:
            return [*errors, reward[k] - base[k]]
        if k + 1 == len(v):
            break
        errors.append(reward[k] + gamma * v[k + 1] - base[k])
    return errors


def explain_variance(target: np.ndarray, value: np.ndarray) -> float:
    """Return the fraction of the variance of targets [n] that values [n] explain."""
    return 1 - np.var(np.subtract(target, value)) / np.var(target)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return pi(a) over the last axis."""
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits, -1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def returns_so_far(episodes: list[list[tuple[float, bool]]], gamma: float) -> list[float]:
    """Return the discounted return so far of every valid row of some episodes [(reward, valid)]."""
    return [
        sum(gamma ** (j - i) * reward for j, (reward, _) in enumerate(rows) if j >= i)
        for rows in ([row for row in episode if row[1]] for episode in episodes)
        for i in range(len(rows))
    ]


def discounted_sums(episodes: list[list[tuple[float, bool]]], gamma: float) -> list[float]:
    """Return the discounted sum of the rewards up to every valid row of some episodes [(reward, valid)]."""
    backwards = [list(reversed(episode)) for episode in reversed(episodes)]
    return returns_so_far(backwards, gamma)[::-1]
