"""The targets of reward streams equal sums over the executed actions of a lane, computed without a record."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm import returns

GAMMA = 0.875
CROSSING = returns.RewardStream(gamma=GAMMA, weight=1.0, crosses_episodes=True)
EPISODIC = replace(CROSSING, crosses_episodes=False)
ROWS, COLUMNS = 12, 4
RHO_CLIP, TRACE_CLIP = 1.25, 0.75
# Ends of episodes: in the record, an episode that terminates may have a row with its last observation, too.
TERMINATION, TERMINATION_AND_LAST_OBSERVATION, TRUNCATION, TRUNCATION_WITHOUT_LAST_OBSERVATION = range(4)
seeds = settings(max_examples=30, deadline=None, derandomize=True)


@pytest.fixture(autouse=True, scope="module")
def in_float64():
    """Make float64 the dtype of a bool times a float."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_lane(rng):
    """Return the rows 0 .. ROWS of a lane as (kind, is first, alive), and the rows after which an episode terminates.

    Kinds: "action", "last observation", and "unknown" for an action whose consequence is not in the record.
    """
    rows, terminations, is_first = [], set(), rng.random() < 0.5
    while len(rows) <= ROWS:
        end = rng.integers(4) if rng.random() < 0.35 else None
        kind = "unknown" if end == TRUNCATION_WITHOUT_LAST_OBSERVATION else "action"
        terminates = end in (TERMINATION, TERMINATION_AND_LAST_OBSERVATION)
        if terminates:
            terminations.add(len(rows))
        rows.append((kind, is_first, not terminates))
        if end in (TERMINATION_AND_LAST_OBSERVATION, TRUNCATION):
            rows.append(("last observation", False, True))
        is_first = end is not None
    return rows[: ROWS + 1], terminations


def make_record(seed):
    """Return the lanes, and a record of them: `first`, `alive`, and random bonuses, values and ratios, as tensors."""
    rng = np.random.default_rng(seed)
    lanes = [make_lane(rng) for _ in range(COLUMNS)]
    columns = [rows for rows, _ in lanes]
    record = {
        "first": torch.tensor([[is_first for _, is_first, _ in rows] for rows in columns]).T,
        "alive": torch.tensor([[alive for _, _, alive in rows[:-1]] for rows in columns]).T,
        "bonus": torch.from_numpy(rng.normal(size=(ROWS, COLUMNS))),
        "v": torch.from_numpy(rng.normal(size=(ROWS + 1, COLUMNS))),
    }
    return lanes, record, torch.from_numpy(rng.uniform(0, 2, (ROWS, COLUMNS)))


def sum_by_definition(lane, bonus, v, rho, trace, trace_lambda):
    """Return {row: (target of V, estimate of Q)} of a lane by double loops over its executed actions.

    Apart from the value of x_T, only the arrays of executed actions are read.
    """
    rows, terminations = lane
    steps = [t for t in range(ROWS) if rows[t][0] == "action"]
    if ROWS - 1 in terminations and rows[ROWS][0] == "last observation":
        steps, bootstrap = steps[:-1], v[ROWS - 1]  # the next episode is not in the record
    else:
        bootstrap = v[ROWS]
    values = [*(v[t] for t in steps), bootstrap]
    errors = [bonus[t] + GAMMA * values[k + 1] - values[k] for k, t in enumerate(steps)]
    corrections = [0.0] * (len(steps) + 1)
    for i in range(len(steps)):
        factor = 1.0
        for k in range(i, len(steps)):
            corrections[i] += factor * rho[steps[k]] * errors[k]
            factor *= GAMMA * trace_lambda * trace[steps[k]]
    return {
        t: (values[k] + corrections[k], bonus[t] + GAMMA * (values[k + 1] + trace_lambda * corrections[k + 1]))
        for k, t in enumerate(steps)
    }


def assert_equals_definition(estimate, lanes, record, rho, trace, trace_lambda):
    v = record["v"]
    torch.testing.assert_close(estimate.value, v[:-1], rtol=0, atol=0)
    for b, lane in enumerate(lanes):
        expected = sum_by_definition(lane, *(x[:, b].tolist() for x in (record["bonus"], v, rho, trace)), trace_lambda)
        for t in range(ROWS):
            target, q = expected.get(t, (v[t, b].item(),) * 2)
            assert estimate.valid[t, b].item() == (t in expected)
            assert estimate.target[t, b].item() == pytest.approx(target, abs=1e-10)
            assert estimate.advantage[t, b].item() == pytest.approx(q - v[t, b].item(), abs=1e-10)


def estimate(stream, bonus, first, alive, v, rho=None, name="n_step", trace_lambda=1.0):
    """Return the estimates of a stream by an estimator, which reads no value, reward or discount of the environment."""
    clipping = returns.TraceClipping(trace_clip=TRACE_CLIP, rho_clip=RHO_CLIP, trace_lambda=trace_lambda)
    nan = torch.full_like(bonus, torch.nan)
    rho = nan if rho is None else rho
    inputs = returns.EstimatorInputs(
        reward=nan, discount=nan, valid=nan, v=nan, q_taken=nan, rho=rho, rho_per_dimension=rho, prob_taken=lambda: nan
    )
    estimator = partial(returns.ESTIMATORS[name].estimate, clipping=clipping)
    return returns.estimate_streams({"a": stream}, {"a": bonus}, first, alive, [v], inputs, estimator)["a"]


@pytest.mark.parametrize("trace_lambda", [0.0, 0.75, 1.0])
@pytest.mark.parametrize(("name", "clips"), [("n_step", None), ("vtrace", (RHO_CLIP, TRACE_CLIP))])
@seeds
@given(st.integers(0, 2**32 - 1))
def test_estimates_equal_the_sums_over_executed_actions(name, clips, trace_lambda, seed):
    """Without clips, an estimator has no ratios."""
    lanes, record, rho = make_record(seed)
    ratios = [rho.clamp(max=clip) for clip in clips] if clips else [torch.ones_like(rho)] * 2
    found = estimate(CROSSING, **record, rho=rho if clips else None, name=name, trace_lambda=trace_lambda)
    assert_equals_definition(found, lanes, record, *ratios, trace_lambda)


@seeds
@given(st.integers(0, 2**32 - 1))
def test_a_stream_within_episodes_has_the_usual_returns(seed):
    _, record, _ = make_record(seed)
    valid = ~(record["first"][1:] & record["alive"])
    expected = returns.n_step_return(record["bonus"], GAMMA * record["alive"], valid, record["v"], 0.75)
    found = estimate(EPISODIC, **record, trace_lambda=0.75)
    assert found.target.equal(expected) and found.valid.equal(valid)
    assert found.advantage.equal(expected - record["v"][:-1]) and found.error.equal(found.advantage)


def column(*values):
    return torch.tensor(values).unsqueeze(-1)


def test_known_answers_at_a_truncation():
    """Actions in rows 0, 1 and 3; row 2 is the last observation of the first episode, whose contents have no effect."""
    found = estimate(
        replace(CROSSING, gamma=0.5),
        bonus=column(1.0, 2, 100, 4),
        first=column(True, False, False, True, False),
        alive=column(True, True, True, True),
        v=column(0.25, 1, -100, 2, 8),
    )
    assert found.target.flatten().tolist() == [4.0, 6.0, -100.0, 8.0]
    assert found.valid.flatten().tolist() == [True, True, False, True]


@pytest.mark.parametrize(("ends_with_first", "target"), [(True, [4.0, 6.0]), (False, [1.5, 1.0])])
def test_known_answers_of_a_termination_in_the_last_row(ends_with_first, target):
    """If x_T is not the first observation of an episode, the row of the termination has no successor in the record."""
    found = estimate(
        replace(CROSSING, gamma=0.5),
        bonus=column(1.0, 2),
        first=column(True, False, ends_with_first),
        alive=column(True, False),
        v=column(0.25, 1, 8),
    )
    assert found.target.flatten().tolist() == target
    assert found.valid.flatten().tolist() == [True, ends_with_first]


def test_the_advantages_of_streams_are_added_with_their_weights():
    advantage, a, b = torch.randn(3, 5, 4).double()
    streams = {"a": replace(CROSSING, weight=0.5), "b": replace(EPISODIC, weight=2.0)}
    estimates = {
        name: returns.StreamEstimate(value=a, target=a, advantage=each, valid=a > 0)
        for name, each in (("b", b), ("a", a))
    }
    torch.testing.assert_close(returns.add_advantages(advantage, streams, estimates), advantage + 0.5 * a + 2 * b)
    assert returns.add_advantages(advantage, {}, {}) is advantage
