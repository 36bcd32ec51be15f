"""Priorities of new sequences by the TD errors of their steps when these were collected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.errors import UserError
from algorithm.rollout import TD_ERROR
from algorithm.runs.run_requests import resolve_effective
from algorithm.training.batch_scheduler import ReplayScheduler
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_reactor, make_role, make_sac, random_rollout, random_rollout_of
from tests.replay.samplers import PRIORITY_FUNCTION, SAMPLERS, replay_of

LANES, ROWS = 3, 5
INITIAL = {"initial_priorities": "td_error"}
RECORDING = {name: partial(sampler, uses_recorded_errors=True) for name, sampler in SAMPLERS.items()}


def read_priorities(replay, lane, number):
    """Return the own priorities of starts, 0 without one."""
    sampler, find_slot, lane = replay.sampler, replay.sequences.find_slot, np.asarray(lane)
    slot = find_slot(lane, np.asarray(number))
    if hasattr(sampler, "tree"):
        return sampler.tree.leaves[slot] ** (1 / sampler.alpha)
    return sampler.priority[find_slot(lane, sampler.place[slot])]


def make_rollout(rng, errors=None, before=None):
    """Return a rollout with errors, whose first row is the one after the last row of the rollout `before`."""
    rollout = random_rollout(rng, ROWS, LANES)
    if before:
        rollout.first[0] = before.first[-1]
    errors = rng.exponential(size=(ROWS, LANES)) if errors is None else errors
    return replace(rollout, records={TD_ERROR: (rollout.valid * errors).astype(np.float32)})


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("make", [make_acer, make_reactor, make_sac])
def test_a_priority_is_that_of_the_errors_of_the_agent_on_the_rollout(make, name):
    """It equals the one that `prioritize` sets after an update with the same weights."""
    role = make_role(LANES)
    agent = make(role, rollout_length=ROWS, sequence_length=ROWS)
    learner = Learner(agent, role, {}, None)
    for tensor in (learner.parameters.vector, learner.parameters.target_vector):
        torch.nn.init.normal_(tensor, std=0.3, generator=torch.Generator().manual_seed(len(tensor)))
    rollout = random_rollout_of(agent, role, rows=ROWS)
    before = learner.parameters.all_parameters.clone()

    replay, rng = replay_of(RECORDING[name], length=ROWS), np.random.default_rng(0)
    torch.manual_seed(0)  # SAC samples actions
    next(iter(ReplayScheduler(replay, agent.schedule, rng, learner.record_td_errors)(rollout)), None)
    assert torch.equal(learner.parameters.all_parameters, before)

    other = replay_of(SAMPLERS[name], length=ROWS)
    other.add(rollout)
    torch.manual_seed(0)
    errors = learner.compute_gradients(rollout).compute_td_errors()
    other.prioritize(other.ring.make_index(np.arange(LANES), np.zeros(LANES, int)), lambda: errors)
    lanes, first = np.arange(LANES), np.zeros(LANES, int)
    expected = read_priorities(other, lanes, first)
    assert len(set(expected)) > 1
    np.testing.assert_allclose(read_priorities(replay, lanes, first), expected, rtol=1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("length", "burn_in", "state_size"), [(4, 0, 0), (4, 2, 0), (4, 2, 4), (1, 0, 0)])
def test_priorities_are_those_of_the_valid_rows_after_burn_in(name, length, burn_in, state_size):
    rng = np.random.default_rng(burn_in + state_size)
    replay = replay_of(RECORDING[name], length=length, burn_in=burn_in, stored_state_size=state_size)
    rollout = None
    for number in range(9):  # more rows than fit
        rollout = make_rollout(rng, before=rollout)
        memory = np.zeros((LANES, state_size), np.float32)
        replay.add(replace(rollout, memory=memory, continues_previous=np.array([True, True, number % 3 > 0])))
    ring, sequences = replay.ring, replay.sequences
    start_range, checked = sequences.compute_start_range(), 0
    for lane in range(LANES):
        for start in range(start_range.oldest[lane], start_range.newest[lane] + 1):
            first = start * sequences.stride
            errors, valid = [], []
            for row in range(first + burn_in, first + burn_in + length):
                errors.append(ring.arrays["records/td_error"][lane, row % ring.rows])
                alive = ring.arrays["alive"][lane, row % ring.rows]
                valid.append(not (ring.arrays["first"][lane, (row + 1) % ring.rows] and alive))
            if not sequences.is_learnable(np.array([lane]), np.array([start]))[0]:
                continue
            largest = max(errors)
            mean = sum(errors) / max(sum(valid), 1)
            expected = PRIORITY_FUNCTION(np.array([[largest], [mean]]))[0]
            assert read_priorities(replay, [lane], [start])[0] == pytest.approx(expected, rel=1e-5)
            checked += 1
    assert checked > 3


def test_a_sequence_whose_errors_are_not_finite_has_the_priority_without_them():
    rng = np.random.default_rng(0)
    errors = np.ones((ROWS, LANES))
    errors[2, 1] = np.nan
    for name, expected in (("prioritized", 1.0), ("lazy", 0.0)):
        replay = replay_of(RECORDING[name], length=ROWS)
        rollout = random_rollout(rng, ROWS, LANES)
        rollout.first[:], rollout.alive[:] = False, True
        replay.add(replace(rollout, records={TD_ERROR: np.float32(0.5 * errors)}))
        assert read_priorities(replay, [0, 1], [0, 0]) == pytest.approx([0.5, expected])
        assert replay.sample(4) is not None


def test_errors_that_an_actor_has_computed_are_not_computed_again():
    role = make_role(LANES)
    agent = make_acer(role, rollout_length=ROWS, sequence_length=ROWS)

    def fail(rollout):
        raise AssertionError

    replay = replay_of(RECORDING["prioritized"], length=ROWS)
    scheduler = ReplayScheduler(replay, agent.schedule, np.random.default_rng(0), fail)
    rollout = make_rollout(np.random.default_rng(0))
    assert next(scheduler(rollout)) is rollout


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, INITIAL, "replay_config.initial_priorities has no effect, since sampler is uniform"),
        ({"base_config": {"algorithm": "PPO"}}, INITIAL, "replay_config.initial_priorities has no effect"),
        ({}, {"use_add_with_td": True}, "use replay_config.initial_priorities: td_error"),  # the name elsewhere
    ],
)
def test_initial_priorities_need_a_prioritized_replay_and_their_name(settings, given, message):
    with pytest.raises(UserError, match=message):
        resolve_effective(("test", settings), {}, [("given", {"replay_config": given})])
