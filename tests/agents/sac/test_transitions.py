"""Transitions of several steps have the n-step return of the first row of a sequence, and the features of two rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.agents.sac.transitions import join_steps
from algorithm.networks import Blueprint, FrameStack, Gru, Torso, Vector
from algorithm.returns import n_step_return
from algorithm.rollout import COLLECTED
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_sac, random_rollout, random_rollout_of, to_float64

WARMUP, STEPS, COLUMNS = 2, 4, 200


@pytest.fixture
def rollout():
    sequences = random_rollout(np.random.default_rng(0), WARMUP + STEPS, COLUMNS)
    return replace(to_float64(sequences), burn_in=WARMUP, index=np.arange(COLUMNS))


def test_reward_and_discount_are_those_of_the_n_step_return_whatever_the_values(rollout):
    rows, joined = rollout.drop_burn_in(), join_steps(rollout, 0.875)
    v = torch.randn(STEPS + 1, COLUMNS).double()
    row = torch.arange((STEPS + WARMUP + 1) * COLUMNS).view(-1, COLUMNS)
    end = join_steps(replace(rollout, obs={"row": row}), 0.875).rollout.obs["row"][1] // COLUMNS - WARMUP
    expected = n_step_return(rows.reward, 0.875 * rows.alive, rows.valid, v, horizon=STEPS)[:1]
    target = joined.rollout.reward + joined.discount * v.gather(0, end[None])
    valid = rows.valid[:1]
    assert 0.5 < valid.double().mean() < 1 and (joined.discount[valid] == 0).any()
    torch.testing.assert_close(target[valid], expected[valid])
    assert (joined.rollout.valid == valid).all()
    assert (joined.rollout.alive[valid] == (joined.discount[valid] > 0)).all()


def test_features_are_those_of_the_first_row_and_of_the_row_after_the_rewards(rollout):
    torso = Torso(Blueprint({"*": FrameStack(WARMUP + 1, Vector())}), {"obs": ObsSpec((3,))})
    joined = join_steps(rollout, 0.875)
    all_features = torso.unroll(rollout.obs, rollout.first, rollout.memory, WARMUP)
    features, target_features, acting_features = joined.unroll(torso, None)
    is_after = (all_features[1:, :, -3:] == joined.rollout.obs["obs"][1]).all(-1)
    assert (is_after.sum(0) == 1).all()
    torch.testing.assert_close(features[0], all_features[0])
    torch.testing.assert_close(features[1], all_features[1:][is_after.T.nonzero()[:, 1], torch.arange(COLUMNS)])
    assert torch.equal(features, target_features) and torch.equal(features, acting_features)


# Without entropy and noise, the targets of first rows are the same whichever rows are learned from.
WITHOUT_ENTROPY = {"alpha_critic_scale": 0.0, "std_init": 1e-7, "std_min": 0.0}


@pytest.mark.parametrize(
    "spec, settings",
    [
        (ActionSpec(0, (3,)), {"discrete_dqn_like": True}),
        (ActionSpec(2), WITHOUT_ENTROPY),
        (ActionSpec(2), {"critic": "categorical", **WITHOUT_ENTROPY}),
    ],
)
def test_errors_are_those_of_the_first_rows_of_batches_and_of_all_rows_of_collected_rollouts(spec, settings):
    role, errors = Role(COLUMNS, {"obs": ObsSpec((3,))}, spec), {}
    settings = {"n_step": STEPS, "sequence_length": STEPS, "use_n_step_is": False, **settings}
    for learned_rows in ("all", "first"):
        torch.manual_seed(0)
        agent = make_sac(role, learned_rows=learned_rows, **settings)
        batch = random_rollout_of(agent, role, rows=WARMUP + STEPS).convert(torch.from_numpy)
        for name, index in (("batch", np.arange(COLUMNS)), ("collected", np.full(COLUMNS, COLLECTED))):
            _, result = agent.loss(replace(batch, burn_in=WARMUP, index=index))
            errors[learned_rows, name] = result.compute_row_errors()
    valid = batch.valid[WARMUP:]
    torch.testing.assert_close(errors["first", "batch"][valid[:1]], errors["all", "batch"][:1][valid[:1]])
    assert errors["first", "batch"].shape == (1, COLUMNS) and errors["first", "collected"].shape == valid.shape


@pytest.mark.parametrize("changes", [{"sequence_length": 3}, {"use_n_step_is": True}])
def test_settings_that_first_rows_exclude_are_refused(changes):
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(0, (3,)))
    settings = {"discrete_dqn_like": True, "n_step": 2, "sequence_length": 2, "use_n_step_is": False, **changes}
    with pytest.raises(ValueError, match="learned_rows first needs"):
        make_sac(role, learned_rows="first", **settings)


def test_a_network_with_a_memory_is_refused():
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(0, (3,)))
    settings = {"discrete_dqn_like": True, "n_step": 2, "sequence_length": 2, "use_n_step_is": False}
    with pytest.raises(ValueError, match="learned_rows first needs a network without"):
        make_sac(role, Blueprint(memory=Gru(4)), learned_rows="first", **settings)
