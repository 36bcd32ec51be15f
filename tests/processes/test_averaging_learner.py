"""Learners of two processes that average their gradients, compared with one learner of the whole batches."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, zip_longest
from unittest import mock

import numpy as np
import pytest
import torch

from algorithm.agents.agent import LossResult
from algorithm.auxiliaries.prediction import Prediction
from algorithm.auxiliaries.settings import PredictionSettings
from algorithm.errors import LearnerUnreachable
from algorithm.networks import Blueprint, Mlp, Residual, Vector, flat_parameters
from algorithm.processes.averaging_learner import (
    AveragingLearner,
    LearnerConnection,
    close_connection,
    find_interface,
    learn_round,
)
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.batch_scheduler import BatchScheduler, OnPolicyScheduler
from algorithm.training.components import run_updates
from algorithm.training.learner import Learner
from tests.builders import (
    PassThrough,
    make_a2c,
    make_acer,
    make_ppo,
    make_reactor,
    make_role,
    make_sac,
    random_rollout,
    random_rollout_of,
    update,
)
from tests.prepared_processes import PREPARED

pytestmark = pytest.mark.timeout(300)  # processes that wait for each other are slow on busy processors

SIZE = 2
COLUMNS = 5
PARTS = np.arange(1), np.arange(1, COLUMNS)  # the columns of each learner: their numbers of valid rows differ
ALL = np.arange(COLUMNS)
DISCRETE = make_role(COLUMNS)
HYBRID = Role(COLUMNS, {"obs": ObsSpec((3,))}, ActionSpec(continuous=2, branches=(3,)))
NOISE = torch.from_numpy(np.random.default_rng(0).normal(size=(7, COLUMNS, 3, 2)))  # of SAC's actions, by row and lane
LIMITS = {f"max_grad_norm_{group}": 0.05 for group in ("critic", "policy", "alpha")}
PLAIN = {"reward_normalization": None, "max_grad_norm": 0.05}  # so that gradients are clipped
CASES = {
    "acer": (make_acer, DISCRETE, {"max_grad_norm": 0.05}),
    "acer_hybrid": (make_acer, HYBRID, {"critic": "state_value", "estimator": "vtrace", "max_grad_norm": 0.05}),
    "acer_with_prediction": (make_acer, DISCRETE, {"max_grad_norm": 0.05}),
    "sac": (make_sac, HYBRID, {"burn_in_step": 0, "policy_update_every": 2, **LIMITS}),
    "reactor": (make_reactor, DISCRETE, {"update_target_per_step": 10, "max_grad_norm": 0.05}),
    "a2c": (make_a2c, DISCRETE, {**PLAIN, "normalize_advantages": True}),
    "ppo": (make_ppo, HYBRID, {**PLAIN, "epochs": 2, "minibatches": 1}),
    "ppo_with_minibatches": (make_ppo, HYBRID, {**PLAIN, "epochs": 2, "minibatches": 2}),
}
EQUAL = [name for name in CASES if name != "ppo_with_minibatches"]  # to one learner of the whole batches
VALUES = [3.0, 5.0, 9.0], [-2.0, 0.5]  # of each learner
UPDATES = 50


@contextmanager
def float64():
    """Build and train networks in float64 within the block."""
    flatten = flat_parameters.flatten_tensors
    with mock.patch.object(
        flat_parameters, "flatten_tensors", lambda tensors, _, device: flatten(tensors, torch.float64, device)
    ):
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


def make_learner(name, connection=None):
    """Return a learner; a connected one has other initial parameters than the others, before they are synchronized."""
    make, role, changes = CASES[name]
    blueprint = Blueprint(encoders={"*": PassThrough()}, body=Mlp(8))
    agent = make(role, blueprint, seed=connection.rank if connection else 0, **changes)
    auxiliaries = {}
    if name == "acer_with_prediction":  # whose masks are the valid rows
        settings = PredictionSettings(transition_coef=0.0, observation_coef=0.0, adaptive=False, units=8)
        auxiliaries = {"prediction": Prediction(settings)}
    arguments = agent, role, auxiliaries, None
    return AveragingLearner(*arguments, connection=connection) if connection else Learner(*arguments)


def make_rollout(name, learner, seed, columns=ALL):
    """Return some columns of a rollout in float64."""
    rollout = random_rollout_of(learner.agent, CASES[name][1], seed).take_columns(columns)
    return rollout.convert(lambda array: array.astype(np.float64) if array.dtype == np.float32 else array)


class Batches(BatchScheduler):
    """A scheduler that yields given batches, and records the TD errors."""

    replay, rng = None, np.random.default_rng(0)

    def __init__(self, batches):
        self.batches, self.errors = batches, []

    def __call__(self, rollout):
        yield from self.batches

    def prioritize(self, batch, compute_td_errors):
        self.errors.append(compute_td_errors())


@contextmanager
def fixed_noise(columns):
    """Draw the same noise for a lane, whatever other lanes there are."""
    with mock.patch.object(torch.Tensor, "normal_", lambda self: self.copy_(NOISE[: len(self), columns])):
        yield


def train(name, learner, columns=ALL):
    """Make updates with some columns of each batch. Return what all learners share."""
    with fixed_noise(columns):
        if learner.agent.schedule.epochs:
            scheduler = make_scheduler(learner, learner.prepare)
            schedulers = [(scheduler, make_rollout(name, learner, seed, columns)) for seed in range(UPDATES // 2)]
        else:
            batches = [make_rollout(name, learner, seed % 5, columns) for seed in range(UPDATES)]
            schedulers = [(Batches(batches), batches[0])]
        for scheduler, rollout in schedulers:
            learn(learner, scheduler, rollout)
    assert learner.updates == UPDATES and not learner.skipped_updates
    return collect(learner)


def make_scheduler(learner, prepare, has_memory=False, seed=0):
    """Return the scheduler of minibatches, which consist of whole columns with `has_memory`."""
    rng = np.random.default_rng(seed)
    return OnPolicyScheduler(learner.agent.schedule, prepare, has_memory=has_memory, initial_lanes=COLUMNS, rng=rng)


def learn(learner, scheduler, rollout):
    """Make the updates that follow a rollout. Return the number of reports."""
    reports, components = [], mock.Mock(learner=learner, scheduler=scheduler)
    if isinstance(learner, AveragingLearner):
        schedule = {"generator": scheduler.rng.bit_generator.state, **scheduler.state()}
        learn_round(components, rollout, schedule, reports.append)
    else:
        run_updates(components, rollout, reports.append)
    assert all(report.raw_action is rollout.raw_action for report in reports)
    return len(reports)


def collect(learner):
    """Return copies of the parameters, statistics and moments."""
    moments = [optimizer.moments for optimizer in learner.optimizers]
    return torch.cat([learner.parameters.all_parameters, learner.parameters.statistics, *moments]).clone()


def exchange_numbers(connection):
    values = VALUES[connection.rank]
    moments = [
        connection.merge_moments(len(own), np.mean(own) if own else 0.0, np.std(own, ddof=1) if len(own) > 1 else 0.0)
        for own in (values, values[:1], [] if connection.rank else values, [])
    ]
    return connection.gather(connection.rank, 1 / 3), moments


def average_updates(connection):
    with float64():
        results = {name: train(name, make_learner(name, connection), PARTS[connection.rank]) for name in EQUAL}
        return results, {name: train(name, make_learner(name)) for name in EQUAL} if connection.rank == 0 else None


def follow_with_fewer_batches(connection):
    """The learners have 3 and 1 batches, then none and 2; the policy of SAC learns in every second update."""
    with float64():
        learner, alone = make_learner("sac", connection), make_learner("sac")
        both, first, second = [1, 1], [1, 0], [0, 1]
        counts, errors = [], []
        for turn, plan in enumerate([[both, first, first], [second, second], []]):
            own = [
                make_rollout("sac", learner, 10 * turn + number, PARTS[connection.rank])
                for number, has_batch in enumerate(plan)
                if has_batch[connection.rank]
            ]
            scheduler = Batches(own)
            with fixed_noise(PARTS[connection.rank]):
                counts.append(learn(learner, scheduler, own[0] if own else None))
            errors += [error.shape[1] for error in scheduler.errors]
            for number, has_batch in enumerate(plan):
                columns = np.concatenate([part for part, has in zip(PARTS, has_batch, strict=True) if has])
                with fixed_noise(columns):
                    update(alone, make_rollout("sac", alone, 10 * turn + number, columns))
        alone._counts[1] = learner.rows_seen
        return collect(learner), collect(alone), counts, errors


def follow_with_fewer_minibatches(connection):
    """Learner 0 has one column: one minibatch in each of two epochs. Learner 1 has four columns, and two minibatches.

    One learner makes the same updates with both minibatches as one.
    """
    name = "ppo_with_minibatches"
    with float64():
        learner, alone = make_learner(name, connection), make_learner(name)
        for turn in range(5):
            rollout = make_rollout(name, learner, turn, PARTS[connection.rank])
            learn(learner, make_scheduler(learner, learner.prepare, True, seed=connection.rank), rollout)
            prepared = alone.prepare(make_rollout(name, alone, turn))
            minibatches = [
                make_scheduler(alone, lambda part: part, True, seed=rank)(prepared.take_columns(PARTS[rank]))
                for rank in range(SIZE)
            ]
            for parts in zip_longest(*minibatches):
                update(alone, prepared.take_columns(np.concatenate([part.lane for part in parts if part is not None])))
        return collect(learner), collect(alone), learner.updates


def merge_running_statistics(connection):
    """Each learner observes rollouts of 4 lanes; one learner of 8 lanes observes them in the same order."""

    def make(lanes):
        role = make_role(lanes)
        agent = make_acer(role, Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(8)))
        agent.reward_transform = replace(agent.reward_transform, reward_normalization="return_max", return_bound=5.0)
        return agent, role, {}, 1000

    learner, alone = AveragingLearner(*make(4), connection=connection), Learner(*make(8))
    for turn in range(3):
        rollouts = [random_rollout(np.random.default_rng([turn, rank])) for rank in range(SIZE)]
        learner.observe(rollouts[connection.rank])
        for rank, rollout in enumerate(rollouts):
            alone.observe(replace(rollout, lane=rollout.lane + 4 * rank))
    learner.observe(rollouts[1] if connection.rank == 1 else None)
    alone.observe(replace(rollouts[1], lane=rollouts[1].lane + 4))
    statistics = [each.parameters.statistics.clone() for each in (learner, alone)]
    return *statistics, learner.rows_seen, alone.rows_seen, learner._compute_progress()


def average_batch_statistics(connection):
    learner = AveragingLearner(
        make_acer(blueprint=Blueprint(body=Residual(6, 1))), make_role(), {}, None, connection=connection
    )
    columns = learner.parameters.batch_statistics_slices["acer"]  # those of the average policy follow them
    batch, before = random_rollout(np.random.default_rng(connection.rank)), learner.parameters.batch_statistics.clone()
    report = learner.compute_gradients(batch)
    own = learner.parameters.increments.clone()
    learner.average_gradients(batch, report)
    learner.apply_gradients()
    after = learner.parameters.batch_statistics.clone()
    return before[columns], own[columns], batch.valid.sum(), after[columns]


def skip_bad_gradient(connection):
    learner = AveragingLearner(make_acer(), make_role(), {}, None, connection=connection)
    batch, states, skipped = random_rollout(np.random.default_rng(connection.rank)), [collect(learner)], []
    for bad_rank in (1, 0, None):
        report = learner.compute_gradients(batch)
        if connection.rank == bad_rank:
            learner.parameters.gradient[7] = torch.nan
        learner.average_gradients(batch, report)
        learner.apply_gradients()
        states.append(collect(learner))
        skipped.append((learner.skipped_updates, learner.consecutive_skips))
    return states, skipped


def end_epochs_together(connection):
    """The mean excess over 1 and 3 rows is above 0 or not, whatever each learner has."""
    learner = AveragingLearner(make_ppo(normalize_advantages=False), make_role(), {}, None, connection=connection)
    column = random_rollout(np.random.default_rng(0), rows=(1, 3)[connection.rank], columns=1)
    batch = replace(column, first=np.zeros_like(column.first))
    return [
        learner.average_gradients(batch, LossResult(dict, dict, kl_excess=excess[connection.rank]))
        for excess in ((0.3, 0.1), (0.4, -0.1), (0.2, -0.1), (-0.1, -0.1), (None, None))
    ]


def repair_different_parameters(connection):
    learner = AveragingLearner(make_acer(), make_role(), {}, None, connection=connection, check_every=3)
    batch, records = random_rollout(np.random.default_rng(connection.rank)), []
    handler = mock.Mock(level=logging.WARNING, handle=lambda record: records.append(record.getMessage()))
    logging.getLogger("algorithm.processes.averaging_learner").addHandler(handler)
    states = []
    for number in range(6):
        if number == 1 and connection.rank == 1:
            learner.parameters.vector[3] += 1e-6
        learner.average_gradients(batch, learner.compute_gradients(batch))
        learner.apply_gradients()
        states.append(collect(learner))
    return states, records


def reset_together(connection):
    learner = AveragingLearner(make_sac(reset_every=2, reset_shrink=0.5), make_role(), {}, None, connection=connection)
    torch.manual_seed(10 + connection.rank)
    batch = random_rollout_of(learner.agent, make_role(), connection.rank)
    vectors, states = [learner.parameters.vector.clone()], []
    for _ in range(3):
        learner.average_gradients(batch, learner.compute_gradients(batch))
        learner.apply_gradients()
        vectors.append(learner.parameters.vector.clone())
        states.append(collect(learner))
    return vectors, states


def restore_from_learner_0(connection):
    learner = AveragingLearner(make_acer(), make_role(), {}, None, connection=connection)
    if connection.rank == 0:
        alone = Learner(make_acer(), make_role(), {}, None)
        for seed in range(3):
            batch = random_rollout(np.random.default_rng(seed))
            alone.observe(batch)
            update(alone, batch)
        learner.parameters.load(alone.parameters.state())
        learner.restore(alone.state())
    learner.synchronize()
    return collect(learner), learner.updates, learner.rows_seen


SCENARIOS = [
    exchange_numbers,
    average_updates,
    follow_with_fewer_batches,
    follow_with_fewer_minibatches,
    merge_running_statistics,
    average_batch_statistics,
    skip_bad_gradient,
    end_epochs_together,
    repair_different_parameters,
    reset_together,
    restore_from_learner_0,
]


def run_member(folder, rank):
    """Run all scenarios as one of two learners, and save their results; then hang, then end."""
    torch.set_num_threads(1)

    def meet(name, timeout):
        return LearnerConnection(f"file://{folder}/{name}", rank=rank, size=SIZE, timeout=timeout)

    connection = meet("scenarios", 60)
    results = {scenario.__name__: scenario(connection) for scenario in SCENARIOS}
    close_connection()
    for fault in ("hangs", "ends"):
        connection, start = meet(fault, 2), time.monotonic()
        if rank == 1 and fault == "ends":
            torch.save(results, folder / "1.pt")
            os._exit(0)
        noticed = folder / f"{fault}-noticed"
        if rank == 1:
            while not noticed.exists():
                time.sleep(0.05)
        else:
            with pytest.raises(LearnerUnreachable) as error:
                connection.gather(1.0)
            results[fault] = str(error.value), time.monotonic() - start
            noticed.touch()
        close_connection()
    torch.save(results, folder / "0.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results of both learners, by rank and scenario."""
    folder = tmp_path_factory.mktemp("learners")
    processes = [PREPARED.Process(target=run_member, args=(folder, rank)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


def get(results, scenario):
    return [each[scenario.__name__] for each in results]


def test_numbers_are_exchanged_in_float64(results):
    for numbers, (all_moments, first_moments, of_one, none) in get(results, exchange_numbers):
        assert numbers.tolist() == [[0, 1 / 3], [1, 1 / 3]]
        values = np.concatenate(VALUES)
        assert all_moments == pytest.approx((5, values.mean(), values.std(ddof=1)), rel=1e-14)
        assert first_moments == pytest.approx((2, 0.5, np.std([3, -2], ddof=1)), rel=1e-14)
        assert of_one == pytest.approx((3, np.mean(VALUES[0]), np.std(VALUES[0], ddof=1)), rel=1e-14)
        assert none == (0, 0, 0)


@pytest.mark.parametrize("name", EQUAL)
def test_updates_equal_those_of_one_learner_with_the_whole_batches(results, name):
    (first, alone), (second, _) = get(results, average_updates)
    assert first[name].equal(second[name])
    assert first[name].dtype == torch.float64
    torch.testing.assert_close(first[name], alone[name], rtol=0, atol=1e-6)


def test_a_learner_without_a_batch_follows_the_others(results):
    (first, alone, *counts), (second, _, *other_counts) = get(results, follow_with_fewer_batches)
    assert first.equal(second)
    torch.testing.assert_close(first, alone, rtol=0, atol=1e-9)
    assert counts == [[3, 0, 0], [1, 1, 1]]  # reports of each rollout, and columns of TD errors
    assert other_counts == [[1, 2, 0], [4, 4, 4]]


def test_a_step_is_that_of_the_minibatches_of_all_learners(results):
    (first, alone, updates), (second, _, _) = get(results, follow_with_fewer_minibatches)
    assert updates == 5 * 2 * 2
    assert first.equal(second)
    torch.testing.assert_close(first, alone, rtol=0, atol=1e-9)


def test_the_running_statistics_are_those_of_all_rollouts(results):
    for statistics, expected, rows, expected_rows, progress in get(results, merge_running_statistics):
        assert statistics.equal(expected) and statistics.any()
        assert rows == expected_rows
        assert progress == rows / 1000


def test_the_statistics_of_batches_are_averaged(results):
    (before, first, n_first, after), (_, second, n_second, other_after) = get(results, average_batch_statistics)
    assert n_first != n_second and not first.equal(second)
    expected = before + (n_first * first + n_second * second) / (n_first + n_second)
    torch.testing.assert_close(after, expected)
    assert after.equal(other_after)


def test_all_learners_skip_a_step_if_the_gradient_of_one_is_not_finite(results):
    for states, skipped in get(results, skip_bad_gradient):
        assert states[0].equal(states[1]) and states[0].equal(states[2])
        assert not states[0].equal(states[3])
        assert skipped == [(1, 1), (2, 2), (2, 0)]
    (first, _), (second, _) = get(results, skip_bad_gradient)
    assert first[3].equal(second[3])


def test_the_epochs_end_by_the_divergence_over_all_rows(results):
    assert get(results, end_epochs_together) == [[False, False, True, True, True]] * 2


def test_different_parameters_are_found_and_replaced(results):
    (first, messages), (second, other_messages) = get(results, repair_different_parameters)
    assert [one.equal(other) for one, other in zip(first, second, strict=True)] == [True, False, True, True, True, True]
    (message,) = messages
    assert message.startswith("after update 3 the parameters of learners [1] differ from those of learner 0")
    assert not other_messages


def test_a_reset_has_the_same_new_parameters_in_all_learners(results):
    (vectors, first), (_, second) = get(results, reset_together)
    assert all(one.equal(other) for one, other in zip(first, second, strict=True))
    steps = [(after - before).abs().max() for before, after in pairwise(vectors)]
    assert steps[1] > 10 * steps[0] and steps[1] > 10 * steps[2]  # the second one is the reset


def test_a_restored_state_is_copied_from_learner_0(results):
    (first, *counts), (second, *other_counts) = get(results, restore_from_learner_0)
    assert first.equal(second) and counts == other_counts
    assert counts[0] == 3 and counts[1] > 0


@pytest.mark.parametrize(("fault", "limit"), [("hangs", 4.0), ("ends", 2.0)])
def test_the_others_raise_an_error_in_time(results, fault, limit):
    message, seconds = results[0][fault]
    assert message.startswith(
        "learner 0 of 2 cannot continue: another learner has ended, or did not answer within 2 s; "
        "resume from the last checkpoint ("
    )
    assert seconds < limit


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux")
@pytest.mark.parametrize("address", ["file:///tmp/meeting", "tcp://127.0.0.1:6379"])
def test_learners_of_one_machine_use_the_loopback_interface(address):
    assert find_interface(address) == "lo"
