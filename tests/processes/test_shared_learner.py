"""Learners of several processes, which share parameters, moments, statistics and counters (real processes)."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.builders import make_acer, make_role, random_rollout, update
from tests.prepared_processes import PREPARED

if sys.platform == "win32":
    pytest.skip("workers need the locks of POSIX", allow_module_level=True)

from algorithm.agents.agent import select_statistics_rows
from algorithm.networks import Blueprint, Mlp, Residual, Vector
from algorithm.networks.normalization import find_batch_norms
from algorithm.processes.workers import SharedLearner, SharedMemory
from algorithm.training.learner import Learner
from algorithm.training.rewards import RewardNormalizer
from tests.training.test_auxiliary_set import WithEncoder

STEPS = 100
RATE = 2.0**-10  # so that theta - 200 rate g is exact in float32


def subtract_gradient(optimizer, rate):
    optimizer.vector.sub_(optimizer.gradient, alpha=RATE)
    return True


def make_learner(memory, lock="full", return_bound=None, body=None, **changes):
    role = make_role()
    agent = make_acer(role, Blueprint(encoders={"*": Vector(normalize=True)}, body=body or Mlp(8)), **changes)
    if return_bound:
        agent.reward_transform = replace(
            agent.reward_transform, reward_normalization="return_max", return_bound=return_bound
        )
    return SharedLearner(agent, role, {}, None, memory=memory, lock=lock)


def everything(learner):
    """Return copies of all shared tensors."""
    return [shared.clone() for shared, _ in learner._memory._tensors]


def run(target, *arguments, count=2):
    processes = [PREPARED.Process(target=target, args=(*arguments, number)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def descend(memory, lock, number):
    torch.set_num_threads(1)
    learner = make_learner(memory, lock)
    for optimizer in learner.optimizers:
        optimizer.step = partial(subtract_gradient, optimizer)
    for _ in range(STEPS):
        learner.parameters.gradient.fill_(1.0)
        learner.apply_gradients()


def test_steps_of_two_processes_add_up():
    memory = SharedMemory(2)
    learner = make_learner(memory, max_grad_norm=1e9)
    learner.parameters.vector.copy_(torch.round(learner.parameters.vector))
    start = learner.parameters.vector.clone()
    assert run(descend, memory, "full") == [0, 0]
    assert learner.parameters.vector.equal(start - 2 * STEPS * RATE)
    assert learner.updates == 2 * STEPS
    assert learner.skipped_updates == 0


def adam(memory, lock, number):
    torch.set_num_threads(1)
    learner = make_learner(memory, lock)
    for seed in range(STEPS):
        batch = random_rollout(np.random.default_rng([number, seed]))
        learner.observe(batch)
        update(learner, batch)


@pytest.mark.parametrize("lock", ["full", "gradients", "none"])
def test_shared_adam_stays_finite(lock):
    memory = SharedMemory(2)
    learner = make_learner(memory, lock)
    before = learner.parameters.vector.clone()
    assert run(adam, memory, lock) == [0, 0]
    assert all(tensor.isfinite().all() for tensor in everything(learner) if tensor.is_floating_point())
    assert not learner.parameters.vector.equal(before)
    (steps,) = [optimizer.steps for optimizer in learner.optimizers]
    assert 0 < steps <= 2 * STEPS
    assert learner.skipped_updates == 0
    learner.synchronize()
    rows = sum(int(random_rollout(np.random.default_rng([n, s])).valid.sum()) for n in (0, 1) for s in range(STEPS))
    (count,) = [buffer for name, buffer in learner.agent.policy.named_buffers() if name.endswith("count")]
    if lock == "full":
        assert (steps, learner.updates) == (2 * STEPS, 2 * STEPS)
        assert learner.rows_seen == rows == count
    elif lock == "gradients":  # statistics are merged under the lock
        assert learner.rows_seen == rows == count


def rewards_of_process(number):
    """Return a rollout with rewards of 1000 for process 0, and of 1 for process 1."""
    record = random_rollout(np.random.default_rng(number))
    record.reward = np.where(record.valid, (1000, 1)[number], 0).astype(np.float32)
    return record


def observe_in_turn(memory, lock, barrier, number):
    learner = make_learner(memory, lock, return_bound=5.0)
    for turn in range(2):
        barrier.wait(60)
        if turn == number:
            learner.observe(rewards_of_process(number))


@pytest.mark.parametrize("lock", ["full", "gradients", "none"])
def test_the_largest_return_of_all_processes_is_kept(lock):
    memory = SharedMemory(2)
    learner = make_learner(memory, lock, return_bound=5.0)
    assert run(observe_in_turn, memory, lock, PREPARED.Barrier(2)) == [0, 0]
    learner.synchronize()
    moments = learner.reward_normalizer.moments
    alone = RewardNormalizer(learner.agent.reward_transform, make_role().lanes)
    alone.observe(rewards_of_process(0))
    assert moments.largest.equal(alone.moments.largest) and moments.largest > 1000
    assert moments.count == sum(rewards_of_process(number).valid.sum() for number in range(2))


@pytest.mark.parametrize("body", [Mlp(8), Residual(6, 1, unit_weights=True)])
def test_a_learner_that_shares_nothing_with_others_equals_a_plain_one(body):
    """After each update, the parameters of the modules are those in shared memory, bit for bit."""
    shared, role = make_learner(SharedMemory(1), body=body), make_role()
    plain = Learner(make_acer(role, Blueprint(encoders={"*": Vector(normalize=True)}, body=body)), role, {}, None)
    for seed in range(20):
        batch = random_rollout(np.random.default_rng(seed))
        for learner in (shared, plain):
            learner.observe(batch)
            update(learner, batch)
    for kind, tensors in plain.parameters.state().items():
        for name, tensor in tensors.items():
            assert shared.parameters.state()[kind][name].equal(tensor)
    modules = torch.cat([parameter.flatten() for parameter in shared.agent.policy.parameters()])
    assert modules.equal(shared.parameters.vector)
    assert shared.state().keys() == plain.state().keys()
    for name, tensor in plain.state().items():
        assert shared.state()[name].equal(tensor)


def learn_statistics(memory, lock, number):
    torch.set_num_threads(1)
    learner = make_learner(memory, lock, body=Residual(6, 1))
    for seed in range(10):
        update(learner, random_rollout(np.random.default_rng(10 * number + seed)))


def test_processes_share_the_statistics_of_batches():
    """Each commits 10 batches with the weight 0.01, to the mean of the input."""
    memory = SharedMemory(2)
    learner = make_learner(memory, body=Residual(6, 1))
    assert run(learn_statistics, memory, "full") == [0, 0]
    learner.synchronize()
    shared = learner.parameters.batch_statistics
    first, *_ = norms = find_batch_norms([learner.agent.policy])
    assert torch.cat([norm.running for norm in norms]).equal(shared[: sum(2 * norm.size for norm in norms)])
    rollouts = [random_rollout(np.random.default_rng(seed)) for seed in range(20)]
    rows = [select_statistics_rows(rollout.convert(torch.from_numpy)).numpy() for rollout in rollouts]
    means = [rollout.obs["obs"][valid].mean(0) for rollout, valid in zip(rollouts, rows, strict=True)]
    np.testing.assert_allclose(first.running[: first.size], 0.01 * np.sum(means, 0), atol=2e-3)


def make_two_steps(memory):
    learner = make_learner(memory)
    for _ in range(2):
        update(learner, random_rollout(np.random.default_rng(0)))
    return learner


def die_in_a_step(memory, number):
    learner = make_two_steps(memory)
    learner.agent.update_targets = lambda update: os.kill(os.getpid(), signal.SIGKILL)  # after the step
    update(learner, random_rollout(np.random.default_rng(0)))


def die_in_statistics(memory, number):
    learner = make_learner(memory)
    learner.parameters.publish_statistics = lambda: os.kill(os.getpid(), signal.SIGKILL)
    learner.observe(random_rollout(np.random.default_rng(0)))


def test_a_step_whose_process_is_killed_is_undone_and_the_lock_is_released():
    memory = SharedMemory(1)
    learner = make_learner(memory)
    assert run(die_in_a_step, memory, count=1) == [-signal.SIGKILL]
    changed = everything(learner)
    learner.synchronize()
    expected = everything(make_two_steps(SharedMemory(1)))
    assert not all(one.equal(other) for one, other in zip(changed, expected, strict=True))
    assert all(one.equal(other) for one, other in zip(everything(learner), expected, strict=True))
    assert learner.updates == 2


def test_statistics_whose_process_is_killed_are_undone():
    memory = SharedMemory(1)
    learner = make_learner(memory)
    before = everything(learner)
    assert run(die_in_statistics, memory, count=1) == [-signal.SIGKILL]
    learner.synchronize()
    assert all(one.equal(other) for one, other in zip(everything(learner), before, strict=True))
    assert learner.rows_seen == 0


def test_an_exception_in_a_change_undoes_it():
    memory = SharedMemory(1)
    tensor = memory.place(torch.zeros(3))
    with pytest.raises(RuntimeError, match="stop"), memory.change():
        tensor.fill_(1)
        raise RuntimeError("stop")
    with memory.lock():
        assert not tensor.any()


def spoil(memory, number):
    learner = make_learner(memory)
    batch = random_rollout(np.random.default_rng(0))
    for _ in range(5):
        learner.compute_gradients(batch)
        learner.parameters.gradient[number] = np.nan
        learner.apply_gradients()


@pytest.mark.parametrize("lock", ["full", "none"])
def test_a_gradient_with_nan_changes_no_shared_parameter(lock):
    memory = SharedMemory(1)
    learner = make_learner(memory, lock)
    before = learner.parameters.all_parameters.clone()
    assert run(spoil, memory, count=1) == [0]
    assert learner.parameters.all_parameters.equal(before)
    assert (learner.skipped_updates, learner.consecutive_skips) == (5, 5)


def make_frozen(memory, seed):
    """Return a learner with an auxiliary whose networks depend on a seed, and its network that is never trained."""
    role = make_role()
    agent, auxiliary = make_acer(role), WithEncoder()
    torch.manual_seed(seed)
    return SharedLearner(agent, role, {"own": auxiliary}, None, memory=memory, lock="full"), auxiliary.frozen


def train_with_frozen(memory, expected, number):
    torch.set_num_threads(1)
    learner, frozen = make_frozen(memory, seed=number + 1)
    for seed in range(3):
        update(learner, random_rollout(np.random.default_rng([number, seed])))
    sys.exit([parameter.tolist() for parameter in frozen.parameters()] != expected)


def test_processes_share_networks_that_are_never_trained():
    memory = SharedMemory(2)
    learner, frozen = make_frozen(memory, seed=0)
    before = learner.parameters.vector.clone()
    expected = [parameter.tolist() for parameter in frozen.parameters()]
    assert run(train_with_frozen, memory, expected) == [0, 0]
    assert not learner.parameters.vector.equal(before)
    learner.synchronize()
    assert [parameter.tolist() for parameter in frozen.parameters()] == expected
