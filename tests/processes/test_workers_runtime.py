"""Workers: learners that share parameters (in real processes), and runs, which save, restore and merge everything.

One worker equals the local runtime.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.agents.agent import select_statistics_rows
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.exploration.explorers import ActionNoise
from algorithm.networks import Blueprint, Mlp, Residual, Vector
from algorithm.networks.normalization import find_batch_norms
from algorithm.parts.run_folder import RunFolder
from algorithm.processes.workers import SharedLearner, SharedMemory
from algorithm.runs.build import train
from algorithm.training.learner import Learner
from algorithm.training.metrics import read_table
from algorithm.training.rewards import RewardNormalizer
from tests.builders import make_acer, make_role, random_rollout, update
from tests.checkpointing.test_resume import SETTINGS, content, copy_shortened, new_run, train_run
from tests.prepared_processes import PREPARED
from tests.processes.test_cluster_runtime import KINDS as CLUSTER_KINDS
from tests.training.test_auxiliary_set import WithEncoder

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="workers need the locks of POSIX"),
    pytest.mark.usefixtures("prepared_workers"),
]
STEPS = 100
RATE = 2.0**-10  # so that theta - 200 rate g is exact in float32


def subtract_gradient(optimizer, rate):
    optimizer.vector.sub_(optimizer.gradient, alpha=RATE)
    return True


def make_learner(memory, lock="full", bound=None, body=None, **changes):
    role = make_role()
    agent = make_acer(role, Blueprint(encoders={"*": Vector(normalize=True)}, body=body or Mlp(8)), **changes)
    if bound:
        agent.reward_transform = replace(agent.reward_transform, reward_normalization="return_max", return_bound=bound)
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
    learner = make_learner(memory, lock, bound=5.0)
    for turn in range(2):
        barrier.wait(60)
        if turn == number:
            learner.observe(rewards_of_process(number))


@pytest.mark.parametrize("lock", ["full", "gradients", "none"])
def test_the_largest_return_of_all_processes_is_kept(lock):
    memory = SharedMemory(2)
    learner = make_learner(memory, lock, bound=5.0)
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


KINDS = [
    *(kind for kind in CLUSTER_KINDS if kind not in ("noisy layers", "rnd of actions, novel actions, sac")),
    "goal and evaluation",
    "curiosity about features of the agent and repeated noise, sac, hybrid",
    "batch statistics, frame stack, gru and curiosity",
]


@pytest.mark.parametrize(
    ("kind", "lock"),
    [*((kind, "full") for kind in KINDS), *(("a2c, hybrid and recurrent", lock) for lock in ("gradients", "none"))],
)
def test_one_worker_equals_the_local_runtime(kind, lock, tmp_path):
    local = new_run(tmp_path, "local", kind)
    workers = new_run(tmp_path, "workers", kind, runtime="WORKERS", n_workers=1, worker_lock=lock)
    for folder in (local, workers):
        train_run(folder)
    saved, expected = (sorted((run.path / "checkpoints").glob("0*")) for run in (workers, local))
    assert [path.name for path in saved] == [path.name for path in expected]
    assert len(saved) >= 3
    for path in expected:
        assert_same(workers.checkpoints(1).find(path.name), local.checkpoints(1).find(path.name))
    assert without_times(workers) == without_times(local)

    resumed = copy_shortened(workers, "resumed", 1)
    assert_same(train_run(resumed), local.find_latest())


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    """Compare checkpoints without Python's generator, from which the type checks of tests draw, but not in workers."""
    left, right = content(one), content(other)
    assert left.keys() == right.keys()
    for about in (left["about"], right["about"]):
        about["generators"].pop("python")
    assert left.pop("about") == right.pop("about")
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], name)


def without_times(folder: RunFolder) -> list[dict[str, str]]:
    """Return the rows of metrics without the columns that depend on time."""
    counts = ("time/episodes", "time/updates")
    return [
        {name: cell for name, cell in row.items() if not name.startswith("time/") or name in counts}
        for row in read_table(folder.path / "metrics.csv").rows
    ]


def test_a_local_run_continues_with_one_worker_and_back(tmp_path):
    straight = new_run(tmp_path, "straight", "probe", algorithm="A2C")  # without a schedule that ends at max_step
    end = train_run(straight)
    changing = copy_shortened(straight, "changing", 2)
    for runtime, max_step in (("WORKERS", 150), ("LOCAL", 230)):
        settings = merge(
            changing.load_settings().tree, {"base_config": {"runtime": runtime, "n_workers": 1, "max_step": max_step}}
        )
        changing.record_settings(settings, 0)
        train_run(changing)
    assert_same(changing.find_latest(), end)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """Return the folder of a run with two workers, with its last two checkpoints."""
    from tests import conftest  # noqa: F401

    path = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        base = {"runtime": "WORKERS", "n_workers": 2, "max_step": 400, "save_every": 100}
        folder = new_run(path, "two", "continuous, noisy and normalised", **base)
        train_run(folder)
    return folder


def test_a_checkpoint_has_the_experience_of_every_worker(two_workers):
    checkpoint = two_workers.find_latest()
    saved = content(checkpoint)
    about = saved["about"]
    assert set(about["workers"]) == {"1"}
    assert about["roles"]["agent"]["generators"] != about["workers"]["1"]["roles"]["agent"]["generators"]
    rings = [saved[f"{prefix}agent/replay.npz/head"] for prefix in ("", "worker-1/")]
    assert all(head.min() > 0 for head in rings)
    assert saved["agent/learner.pt/updates"] == about["counters"]["updates"] > 0
    assert saved["agent/weights.pt/statistics/obs/acer"][-1] == saved["agent/learner.pt/seen"]  # merged
    assert {"actor.npz/adapter", "worker-1/actor.npz/adapter"} <= saved.keys()
    observations = [saved[f"{prefix}agent/replay.npz/obs/obs"] for prefix in ("", "worker-1/")]
    assert not np.array_equal(*observations)
    checkpoint.check()


def test_resuming_restores_every_worker(two_workers):
    """A run that ends at once saves what it restored; a worker that is added starts with an empty replay."""
    copy = copy_shortened(two_workers, "restored", 9)
    latest = copy.find_latest()
    before = content(latest)
    env_steps = latest.counters.env_steps
    latest_name = latest.folder.name
    changed = {"base_config": {"max_step": env_steps + 1, "n_workers": 3}}
    copy.record_settings(merge(copy.load_settings().tree, changed), env_steps)
    train(copy.load_settings(), copy, lambda line: None)
    after = content(copy.find_latest())
    assert copy.find_latest().folder.name != latest_name
    assert after["worker-2/agent/replay.npz/head"].max() <= 8
    for prefix in ("", "worker-1/"):
        head = f"{prefix}agent/replay.npz/head"
        grown = after[head] - before[head]
        assert (grown >= 0).all()
        assert (grown <= 8).all()  # at most one rollout: the replay was restored
        rows_before = before[f"{prefix}agent/replay.npz/obs/obs"]
        kept = int(before[head].min())
        assert np.array_equal(after[f"{prefix}agent/replay.npz/obs/obs"][:, :kept], rows_before[:, :kept])


def test_several_roles(tmp_path):
    pytest.importorskip("pettingzoo")
    base = {"env_type": "PETTINGZOO", "env_name": "tests.adapters.parallel:Race", "n_envs": 2}
    base |= {"runtime": "WORKERS", "n_workers": 2}
    small = {"acer_config": SETTINGS["acer_config"], "replay_config": {"capacity": 400}}
    limits = {"max_step": 600, "log_every": 200, "save_every": None}
    settings = resolve([("test", {"base_config": {**base, **limits}, **small})])
    folder = RunFolder.create("fake/task", tmp_path, "a", settings.tree)
    result = train(folder.load_settings(), folder, lambda line: None)
    checkpoint = folder.find_latest()
    assert len(checkpoint.roles) > 1
    assert set(result.returns) == set(checkpoint.roles)
    for role in checkpoint.roles:
        assert (checkpoint.folder / "worker-1" / role / "replay.npz").exists()
        learner = torch.load(checkpoint.folder / role / "learner.pt", weights_only=True)
        assert learner["updates"] > 0
        assert learner["kept"] == learner["updates"]


def test_noise_levels_are_spread_over_all_workers():
    explorers = [ActionNoise(make_role(6), [0.0, 1.0]) for _ in range(2)]
    for worker, explorer in enumerate(explorers):
        explorer.select_lanes(range(worker, 6, 2))
    levels = np.stack([explorer.lane_levels for explorer in explorers], 1).ravel()
    np.testing.assert_allclose(levels, np.linspace(0, 1, 6), rtol=1e-6)


def test_workers_without_a_lock_solve_a_bandit(tmp_path):
    base = {"env_name": "choice", "runtime": "WORKERS", "worker_lock": "none", "max_step": 3_000}
    folder = new_run(tmp_path, "bandit", "probe", algorithm="A2C", **base, evaluate_every=None, save_every=None, seed=1)
    layer = {"a2c_config": {"rollout_length": 2, "optimizer": "adam", "learning_rate": 0.03}}
    folder.record_settings(folder.load_settings(("test", layer)).tree, 0)
    result = train(folder.load_settings(), folder, lambda line: None)
    moments = folder.find_latest().learner_state("agent")["moments/actor_critic"]
    assert moments.isfinite().all() and 0 < float(moments[-1]) <= result.counters.updates
    assert result.returns["agent"] > 0.9
