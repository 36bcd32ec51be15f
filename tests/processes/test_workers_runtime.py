"""Runs with workers: one worker equals the local runtime, and several save, restore and merge everything."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.exploration.explorers import ActionNoise
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from tests.builders import make_role
from tests.checkpointing.test_resume import SETTINGS, content, copy_shortened, new_run, rows, train_run

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="workers need the locks of POSIX"),
    pytest.mark.usefixtures("prepared_workers"),
]
KINDS = [
    "goal and evaluation",
    "continuous, noisy and normalised",
    "gru, last action and episodic bonus",
    "prioritized, with repeated actions",
    "sac, hybrid and recurrent",
    "curiosity about features of the agent and repeated noise, sac, hybrid",
    "reactor, lazy, memories of policy and critic, skipping",
    "a2c, hybrid and recurrent",
    "ppo, recurrent and skipping",
    "batch statistics, frame stack, gru and curiosity",
    "episodic bonus by embeddings, ppo and skipping",
]


@pytest.mark.parametrize(
    ("kind", "lock"),
    [
        *((kind, "full") for kind in KINDS),
        ("a2c, hybrid and recurrent", "gradients"),
        ("a2c, hybrid and recurrent", "none"),
    ],
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
        for row in rows(folder)
    ]


def test_a_local_run_continues_with_one_worker_and_back(tmp_path):
    straight = new_run(tmp_path, "straight", "probe", algorithm="A2C")  # without a schedule that ends at max_step
    end = train_run(straight)
    changing = copy_shortened(straight, "changing", 2)
    for runtime, max_step in (("WORKERS", 150), ("LOCAL", 230)):
        settings = merge(
            changing.load_settings().tree,
            {"base_config": {"runtime": runtime, "n_workers": 1, "max_step": max_step}},
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
        folder = new_run(
            path,
            "two",
            "continuous, noisy and normalised",
            runtime="WORKERS",
            n_workers=2,
            max_step=400,
            save_every=100,
        )
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
    source = tmp_path / "envs" / "fake" / "task"
    source.mkdir(parents=True)
    (source / "env.py").write_text("from tests.adapters.parallel import Race\n\n\ndef make():\n    return Race()\n")
    base = {"env_type": "PETTINGZOO", "env_name": "env.py", "runtime": "WORKERS", "n_workers": 2, "n_envs": 2}
    small = {"acer_config": SETTINGS["acer_config"], "replay_config": {"capacity": 400}}
    limits = {"max_step": 600, "log_every": 200, "save_every": None}
    settings = resolve([("test", {"base_config": {**base, **limits}, **small})])
    folder = RunFolder.create("fake/task", source, "a", settings.tree)
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
    base = {
        "env_name": "choice",
        "runtime": "WORKERS",
        "worker_lock": "none",
        "max_step": 3_000,
        "evaluate_every": None,
    }
    folder = new_run(tmp_path, "bandit", "probe", algorithm="A2C", **base, save_every=None, seed=1)
    layer = {"a2c_config": {"rollout_length": 2, "optimizer": "adam", "learning_rate": 0.03}}
    folder.record_settings(folder.load_settings(("test", layer)).tree, 0)
    result = train(folder.load_settings(), folder, lambda line: None)
    moments = folder.find_latest().learner_state("agent")["moments/actor_critic"]
    assert moments.isfinite().all() and 0 < float(moments[-1]) <= result.counters.updates
    assert result.returns["agent"] > 0.9
