"""Learners of two processes that average their gradients, compared with one learner of the whole batches."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from unittest import mock

import numpy as np
import pytest
import torch

from algorithm.agents.agent import LossResult
from algorithm.auxiliaries.prediction import Prediction
from algorithm.auxiliaries.settings import PredictionSettings
from algorithm.errors import LearnerUnreachable
from algorithm.networks import Blueprint, Mlp, Residual, Vector, flat_parameters
from algorithm.processes.averaging_learner import AveragingLearner, LearnerConnection, close_connection, find_interface
from algorithm.processes.learners import learn_round
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
    assert all(result.raw_action is rollout.raw_action for result in reports)
    return len(reports)


def collect(learner):
    """Return copies of the parameters, statistics and moments."""
    moments = [optimizer.moments for optimizer in learner.optimizers]
    return torch.cat([learner.parameters.all_parameters, learner.parameters.statistics, *moments]).clone()


def is_same(connection, tensor):
    """Return whether all learners have the same tensor."""
    first = tensor.clone()
    connection.broadcast(first, 0)
    return connection.gather(first.equal(tensor)).all()


def numbers_are_exchanged_in_float64(connection):
    assert connection.gather(connection.rank, 1 / 3).tolist() == [[0, 1 / 3], [1, 1 / 3]]
    for parts in (VALUES, [values[:1] for values in VALUES], [VALUES[0], []], [[], []]):
        own, merged = parts[connection.rank], [value for part in parts for value in part]
        mean, std = np.mean(own) if own else 0.0, np.std(own, ddof=1) if len(own) > 1 else 0.0
        expected = (len(merged), np.mean(merged), np.std(merged, ddof=1)) if merged else (0, 0, 0)
        assert connection.merge_moments(len(own), mean, std) == pytest.approx(expected, rel=1e-14)


def updates_equal_those_of_one_learner_with_the_whole_batches(connection, name):
    with float64():
        trained = train(name, make_learner(name, connection), PARTS[connection.rank])
        assert is_same(connection, trained)
        assert trained.dtype == torch.float64
        torch.testing.assert_close(trained, train(name, make_learner(name)), rtol=0, atol=1e-6)


def a_learner_without_a_batch_follows_the_others(connection):
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
        assert is_same(connection, collect(learner))
        torch.testing.assert_close(collect(learner), collect(alone), rtol=0, atol=1e-9)
        assert (counts, errors) == (([3, 0, 0], [1, 1, 1]), ([1, 2, 0], [4, 4, 4]))[connection.rank]


def a_step_is_that_of_the_minibatches_of_all_learners(connection):
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
        assert learner.updates == 5 * 2 * 2
        assert is_same(connection, collect(learner))
        torch.testing.assert_close(collect(learner), collect(alone), rtol=0, atol=1e-9)


def the_running_statistics_are_those_of_all_rollouts(connection):
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
    assert learner.parameters.statistics.equal(alone.parameters.statistics) and learner.parameters.statistics.any()
    assert learner.rows_seen == alone.rows_seen
    assert learner._compute_progress() == alone.rows_seen / 1000


def make_plain_learner(connection, agent=None, **options):
    """Return a connected learner of ACER, or of another agent, with its batch."""
    learner = AveragingLearner(agent or make_acer(), make_role(), {}, None, connection=connection, **options)
    return learner, random_rollout_of(learner.agent, make_role(), connection.rank)


def make_update(learner, batch):
    learner.average_gradients(batch, learner.compute_gradients(batch))
    learner.apply_gradients()


def the_statistics_of_batches_are_averaged(connection):
    learner, batch = make_plain_learner(connection, make_acer(blueprint=Blueprint(body=Residual(6, 1))))
    columns = learner.parameters.batch_statistics_slices["acer"]  # those of the average policy follow them
    before, result = learner.parameters.batch_statistics[columns].clone(), learner.compute_gradients(batch)
    own, rows = learner.parameters.increments[columns].clone(), int(batch.valid.sum())
    learner.average_gradients(batch, result)
    learner.apply_gradients()
    after, (weighted, total) = learner.parameters.batch_statistics[columns], (rows * own, torch.tensor([float(rows)]))
    assert not is_same(connection, own) and not is_same(connection, total)
    for tensor in (weighted, total):
        connection.sum(tensor)
    torch.testing.assert_close(after, before + weighted / total)
    assert is_same(connection, after)


def all_learners_skip_a_step_if_the_gradient_of_one_is_not_finite(connection):
    learner, batch = make_plain_learner(connection)
    before, skipped = collect(learner), []
    for bad_rank in (1, 0, None):
        result = learner.compute_gradients(batch)
        if connection.rank == bad_rank:
            learner.parameters.gradient[7] = torch.nan
        learner.average_gradients(batch, result)
        learner.apply_gradients()
        assert collect(learner).equal(before) == (bad_rank is not None)
        skipped.append((learner.skipped_updates, learner.consecutive_skips))
    assert skipped == [(1, 1), (2, 2), (2, 0)]
    assert is_same(connection, collect(learner))


def the_epochs_end_by_the_divergence_over_all_rows(connection):
    """The mean excess over 1 and 3 rows is above 0 or not, whatever each learner has."""
    learner, _ = make_plain_learner(connection, make_ppo(normalize_advantages=False))
    column = random_rollout(np.random.default_rng(0), rows=(1, 3)[connection.rank], columns=1)
    batch = replace(column, first=np.zeros_like(column.first))
    excesses = ((0.3, 0.1), (0.4, -0.1), (0.2, -0.1), (-0.1, -0.1), (0.0, 0.0))
    reports = [LossResult(dict, dict, kl_excess=excess[connection.rank]) for excess in excesses]
    assert [learner.average_gradients(batch, result) for result in reports] == [False, False, True, True, True]


def different_parameters_are_replaced(connection):
    learner, batch = make_plain_learner(connection, synchronize_every=3)
    equal = []
    for number in range(6):
        if number == 1 and connection.rank == 1:
            learner.parameters.vector[3] += 1e-6
        make_update(learner, batch)
        equal.append(is_same(connection, collect(learner)))
    assert equal == [True, False, True, True, True, True]


def a_reset_has_the_same_new_parameters_in_all_learners(connection):
    learner, batch = make_plain_learner(connection, make_sac(reset_every=2, reset_shrink=0.5))
    torch.manual_seed(10 + connection.rank)
    steps = []
    for _ in range(3):
        before = learner.parameters.vector.clone()
        make_update(learner, batch)
        assert is_same(connection, collect(learner))
        steps.append((learner.parameters.vector - before).abs().max())
    assert steps[1] > 10 * steps[0] and steps[1] > 10 * steps[2]  # the second one is the reset


def a_restored_state_is_copied_from_learner_0(connection):
    learner, _ = make_plain_learner(connection)
    if connection.rank == 0:
        alone = Learner(make_acer(), make_role(), {}, None)
        for seed in range(3):
            batch = random_rollout(np.random.default_rng(seed))
            alone.observe(batch)
            update(alone, batch)
        learner.parameters.load(alone.parameters.state())
        learner.restore(alone.state())
    learner.synchronize()
    assert is_same(connection, collect(learner)) and is_same(connection, torch.from_numpy(learner._counts))
    assert learner.updates == 3 and learner.rows_seen > 0


def the_others_raise_an_error_in_time(connection, folder):
    """Learner 1 hangs, and then ends."""
    rank = connection.rank
    for fault, limit in (("hangs", 4.0), ("ends", 2.0)):
        close_connection()
        connection = LearnerConnection(f"file://{folder}/{fault}", rank=rank, size=SIZE, timeout=2)
        start, noticed = time.monotonic(), folder / f"{fault}-noticed"
        if rank == 1 and fault == "ends":
            return
        while rank == 1 and not noticed.exists():
            time.sleep(0.05)
        if rank == 0:
            with pytest.raises(LearnerUnreachable) as error:
                connection.gather(1.0)
            assert time.monotonic() - start < limit
            assert str(error.value).startswith(
                "learner 0 of 2 cannot continue: another learner has ended, or did not answer within 2 s; "
                "resume from the last checkpoint ("
            )
            noticed.touch()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        numbers_are_exchanged_in_float64,
        a_learner_without_a_batch_follows_the_others,
        a_step_is_that_of_the_minibatches_of_all_learners,
        the_running_statistics_are_those_of_all_rollouts,
        the_statistics_of_batches_are_averaged,
        all_learners_skip_a_step_if_the_gradient_of_one_is_not_finite,
        the_epochs_end_by_the_divergence_over_all_rows,
        different_parameters_are_replaced,
        a_reset_has_the_same_new_parameters_in_all_learners,
        a_restored_state_is_copied_from_learner_0,
    )
} | {name: partial(updates_equal_those_of_one_learner_with_the_whole_batches, name=name) for name in EQUAL}
FAULTS = the_others_raise_an_error_in_time.__name__


def run_member(folder, rank):
    """Run all scenarios as one of two learners, and write the end of each: its failure, or an empty text."""
    torch.set_num_threads(1)
    connection = LearnerConnection(f"file://{folder}/scenarios", rank=rank, size=SIZE, timeout=60)
    for name, scenario in {**SCENARIOS, FAULTS: partial(the_others_raise_an_error_in_time, folder=folder)}.items():
        end = folder / f"{name}-{rank}"
        try:
            scenario(connection)
        except BaseException:
            end.write_text(traceback.format_exc())
            os._exit(1)  # the other learner cannot continue either
        end.write_text("")
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run all scenarios in both learners. Return the folder with their ends."""
    folder = tmp_path_factory.mktemp("learners")
    processes = [PREPARED.Process(target=run_member, args=(folder, rank)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(250)
    return folder


@pytest.mark.parametrize("scenario", [*SCENARIOS, FAULTS])
def test_two_learners(scenario, folder):
    assert [(folder / f"{scenario}-{rank}").read_text() for rank in range(SIZE)] == ["", ""]


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux")
@pytest.mark.parametrize("address", ["file:///tmp/meeting", "tcp://127.0.0.1:6379"])
def test_learners_of_one_machine_use_the_loopback_interface(address):
    assert find_interface(address) == "lo"
