"""Retrace, V-trace and n-step returns: known answers, and sums over each episode alone as their definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import n_step_return, retrace, reverse_scan, sum_rewards, vtrace
from tests.builders import random_estimator_inputs
from tests.oracles import retrace_by_definition, reverse_loop, tensor, vtrace_by_definition

GAMMA = 0.9


def close(actual, *expected):
    torch.testing.assert_close(actual, tensor(*expected), rtol=0, atol=1e-10)


# Three steps of an episode that continues after them.
REWARD, Q, V, RHO = tensor(1, 0, 2), tensor(0.5, 1.5, 1), tensor(0.4, 1, 0.8, 3), tensor(1, 2, 0.5)
PI = tensor(0.5, 0.6, 0.2)
ONE, VALID, DISCOUNT = tensor(1, 1, 1), torch.ones(3, dtype=torch.bool), GAMMA * tensor(1, 1, 1)


def retrace_target(trace, q=Q, v=V):
    return retrace(REWARD, DISCOUNT, VALID, q, v, trace)


def test_known_answers_of_retrace():
    close(retrace_target(RHO.clamp(max=1)), 2.6965, 2.3850, 4.7)
    close(retrace_target(0.7 * RHO.clamp(max=1)), 2.142865, 1.8855, 4.7)


def test_known_answers_of_its_relatives():
    close(retrace_target(ONE), 4.195, 4.05, 4.7)  # Q(lambda), Q^opc
    close(retrace_target(PI), 1.83844, 1.386, 4.7)  # tree-backup
    close(retrace_target(RHO), 3.493, 2.385, 4.7)  # importance sampling
    close(retrace_target(0 * ONE), 1.9, 0.72, 4.7)  # expected SARSA


def vtrace_targets(rho, trace_lambda=1.0, horizon=None):
    return vtrace(REWARD, DISCOUNT, VALID, V, rho, rho, trace_lambda, horizon)


def test_known_answers_of_vtrace():
    v, q = vtrace_targets(RHO.clamp(max=1))
    close(v, 3.2275, 2.475, 2.75)
    close(q, 3.2275, 2.475, 4.7)
    close(RHO.clamp(max=1) * (q - V[:-1]), 2.8275, 1.475, 1.95)
    for target in vtrace_targets(ONE):  # on-policy
        close(target, 4.807, 4.23, 4.7)
    # Lambda, and not the row's own ratio, scales the correction of q.
    close(vtrace_targets(RHO.clamp(max=1), trace_lambda=0.9)[1], 2.952595, 2.2995, 4.7)
    v, q = vtrace_targets(RHO.clamp(max=1), horizon=2)
    close(v, 0.4 + 1.5 - 0.9 * 0.28, 2.475, 2.75)
    close(q, 1.9 - 0.9 * 0.28, 2.475, 4.7)


@pytest.mark.parametrize("horizon", [None, 3, 4])
def test_the_target_of_v_contains_the_ratio_of_its_row_and_the_target_of_q_does_not(horizon):
    v, q = vtrace_targets(tensor(0.2, 1, 0.5), horizon=horizon)
    close(v[:1], 0.9655)
    close(q[:1], 3.2275)


def test_with_a_finite_rho_clip_the_fixed_point_is_the_value_of_another_policy():
    # One state, pi = (.9, .1), mu = (.5, .5), reward (1, 0), rho-bar 1: min(rho-bar mu, pi) = (.5, .1) / .6.
    pi, mu, reward, v = tensor(0.9, 0.1), tensor(0.5, 0.5), tensor(1, 0), 0.0
    none, ever = torch.zeros(1).double(), torch.ones(1, dtype=torch.bool)
    for _ in range(200):
        ahead = tensor(v, 0)
        targets = [
            vtrace(reward[a : a + 1], none, ever, ahead, rho := (pi / mu)[a : a + 1].clamp(max=1), rho)[0]
            for a in range(2)
        ]
        v = float(mu @ torch.cat(targets))
    assert v == pytest.approx(0.5 / 0.6, abs=1e-6)


def test_known_answers_of_n_step_returns():
    close(n_step_return(REWARD, DISCOUNT, VALID, V), 4.807, 4.23, 4.7)  # lambda 1
    for horizon, first, second in ((1, 1.9, 0.72), (2, 1 + 0.81 * 0.8, 1.8 + 0.81 * 3)):
        close(n_step_return(REWARD, DISCOUNT, VALID, V, 1.0, horizon), first, second, 4.7)


# A termination, then a truncation with its last observation in row 4, then an episode that continues after the record.
FIRST, ALIVE = torch.tensor([0, 0, 1, 0, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 1, 1, 1]).bool()
ENDS_V, ENDS_Q = tensor(0.3, 0.6, 0.4, 0.2, 4, 0.8, 2), tensor(0.5, 0.2, 0.7, 0.1, 7, 0.9)
ENDS_TRACE, ENDS_RHO = tensor(1, 0.5, 0.8, 0.25, 5, 1), tensor(1, 0.5, 0.8, 0.25, 1, 1)
ENDS_REWARD = tensor(1, 1, 1, 1, 0, 1)
REAL = [0, 1, 2, 3, 5]


def retrace_at_ends(rows=range(6), first=FIRST, alive=ALIVE, v=ENDS_V):
    """Return the targets of some rows of this record, with other flags or values if given."""
    reward, q, trace = (x[list(rows)] for x in (ENDS_REWARD, ENDS_Q, ENDS_TRACE))
    return retrace(reward, GAMMA * alive.double(), ~(first[1:] & alive), q, v, trace)


def test_termination_ends_the_return_and_truncation_bootstraps_from_the_last_observation():
    discount, valid = GAMMA * ALIVE.double(), ~(FIRST[1:] & ALIVE)
    close(retrace_at_ends()[REAL], 1.9, 1, 2.1925, 4.6, 2.8)
    v, q = vtrace(ENDS_REWARD, discount, valid, ENDS_V, ENDS_RHO, ENDS_RHO)
    close(v[REAL], 1.72, 0.8, 1.816, 1.3, 2.8)
    close(q[REAL], 1.72, 1, 2.17, 4.6, 2.8)
    target = n_step_return(ENDS_REWARD, discount, valid, ENDS_V, 0.95)
    close((target - ENDS_V[:-1])[REAL], 1.582, 0.4, 4.542, 4.4, 2)  # generalized advantage estimation
    for kept, value in ((retrace_at_ends(), 7), (v, 4), (q, 4), (target, 4)):
        close(kept[4:5], value)


@dataclass(frozen=True)
class Kind:
    """A recursion, and its definition.

    Attributes:
        names: The inputs in addition to rewards and ends of episodes.
        compute: Returns the targets, given reward, discount, valid, the inputs by name, and the horizon.
        define: Returns the same by the definition, NaN at invalid rows, given a record and the horizon.
        kept: The input that is the target of an invalid row.
    """

    names: tuple[str, ...]
    compute: Callable[..., tuple[torch.Tensor, ...]]
    define: Callable[..., tuple[np.ndarray, ...]]
    kept: str = "v"

    def make_record(self, seed: int, rows: int | None = None, columns: int = 3) -> dict[str, Any]:
        return random_estimator_inputs(self.names, seed, rows, columns)

    def run(self, record: dict[str, Any], horizon: int | None = None) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the targets of a record, and the valid rows."""
        tensors = {name: x if np.isscalar(x) else torch.from_numpy(x) for name, x in record.items()}
        reward, alive = tensors["reward"], tensors["alive"]
        valid = ~(tensors["first"][1:] & alive)
        inputs = {name: tensors[name] for name in self.names}
        targets = self.compute(reward, record["gamma"] * alive.to(reward.dtype), valid, **inputs, horizon=horizon)
        return [target.numpy() for target in targets], valid.numpy()


def n_step_by_definition(horizon: int | None = None, **record: Any) -> tuple[np.ndarray]:
    ones = np.ones_like(record["reward"])
    return vtrace_by_definition(**record, rho=ones, trace=ones, horizon=horizon)[:1]


KINDS = {
    "retrace": Kind(
        names=("q_taken", "v", "trace"),
        compute=lambda *args, **inputs: (retrace(*args, **inputs),),
        define=lambda **record: (retrace_by_definition(**record),),
        kept="q_taken",
    ),
    "vtrace": Kind(names=("v", "rho", "trace", "trace_lambda"), compute=vtrace, define=vtrace_by_definition),
    "n-step": Kind(
        names=("v", "trace_lambda"),
        compute=lambda *args, **inputs: (n_step_return(*args, **inputs),),
        define=n_step_by_definition,
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
many = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("horizon", [None, 1, 2, 3, 5, 13, 14, 100])  # of at most 13 rows
@every_kind
@many
@given(seeds)
def test_sequences_with_several_episodes_equal_each_episode_alone(kind, horizon, seed):
    record = kind.make_record(seed)
    targets, valid = kind.run(record, horizon)
    kept = record[kind.kept][: len(valid)]
    for target, expected in zip(targets, kind.define(**record, horizon=horizon), strict=True):
        np.testing.assert_array_equal(valid, ~np.isnan(expected))
        np.testing.assert_allclose(target, np.where(valid, expected, kept), rtol=0, atol=1e-10)


@every_kind
def test_float32_is_precise_enough_for_long_records(kind):
    record = kind.make_record(5, rows=200, columns=4)
    single = {n: x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x for n, x in record.items()}
    for target, exact in zip(kind.run(single)[0], kind.run(record)[0], strict=True):
        np.testing.assert_allclose(target, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("horizon", [1, 2, 5, 99])
@many
@given(seeds)
def test_the_parts_of_a_return_make_the_return(horizon, seed):
    record = random_estimator_inputs(("v",), seed)
    reward, alive, first, v = (torch.from_numpy(record[name]) for name in ("reward", "alive", "first", "v"))
    valid, discount = ~(first[1:] & alive), record["gamma"] * alive.double()
    sums, products, end = sum_rewards(reward, discount, valid, horizon)
    expected = n_step_return(reward, discount, valid, v, horizon=horizon)
    torch.testing.assert_close((sums + products * v.gather(0, end))[valid], expected[valid], rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(rows, 3) for rows in (1, 2, 3, 4, 5, 7, 8, 9, 17, 32, 50)] + [(6,), (6, 2, 3)])
def test_scan_equals_a_loop_with_zeros_in_the_coefficients(shape):
    rng = np.random.default_rng(shape[0])
    a, b = rng.normal(size=shape), (rng.normal(size=shape) * (rng.random(shape) < 0.8))[1:]
    given_a, given_b = torch.from_numpy(a.copy()), torch.from_numpy(b.copy())
    np.testing.assert_allclose(reverse_scan(given_a, given_b), reverse_loop(a, b), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(given_a, a)
    np.testing.assert_array_equal(given_b, b)
