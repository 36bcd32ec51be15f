"""Checkpoints are complete or absent, and damaged ones are reported and not used."""

from __future__ import annotations

import io
import os
import random
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.checkpointing.checkpoint import CheckpointError, Manifest, write_all
from algorithm.checkpointing.store import CheckpointStore, CheckpointWriter
from algorithm.config.loader import resolve
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.training.actor import Actor
from algorithm.training.progress import Counters, History
from tests.checkpointing.test_resume import open_components
from tests.doubles import collect_ticks

FILES = ["manifest.json", "counters.json", "actor.npz", "agent/weights.pt", "agent/learner.pt", "agent/replay.npz"]


class Run:
    """The parts of a run on a probe environment, and their checkpoints."""

    def __init__(self, tmp_path, keep=3):
        (tmp_path / "envs").mkdir()
        base = {"env_type": "PROBE", "env_name": "chain", "n_envs": 2, "max_step": 100, "save_every": 40}
        small = {"replay_config": {"capacity": 400}, "acer_config": {"learning_starts": 100}}
        settings = resolve([("test", {"base_config": base, **small})])
        self.folder = RunFolder.create("fake/task", tmp_path / "envs", "a", settings.tree)
        self.parts = open_components(self.folder)
        self.actor = Actor(self.parts, seed=0)
        self.checkpoints = CheckpointStore(tmp_path / "checkpoints", keep)
        states = {"history": History(self.parts, Counters())}
        write_parts = partial(write_all, self.parts, self.actor)
        self.writer = CheckpointWriter(self.checkpoints, write_parts, states, print)
        self.logged = []

    def save(self, env_steps: int):
        collect_ticks(self.actor, 5)
        return self.writer.write(Counters(env_steps=env_steps))

    def latest(self, name=None):
        return self.checkpoints.latest(self.logged.append, name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.folder.iterdir())


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_cut_or_changed_file_is_logged_and_the_previous_checkpoint_is_used(run, name):
    good, bad = run.save(10), run.save(20)
    assert run.latest().folder == bad.folder and not run.logged
    path, rng = bad.folder / name, random.Random(0)
    content = path.read_bytes()
    harmed = [None, b"", content[: len(content) // 2]]
    for place in (0, len(content) - 1, *rng.sample(range(len(content)), min(60, len(content)))):
        harmed.append(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
    is_read = name in ("manifest.json", "counters.json", "agent/weights.pt")  # for a request of the weights alone
    for wrong in harmed:
        path.unlink() if wrong is None else path.write_bytes(wrong)
        run.logged.clear()
        assert run.latest().folder == good.folder, wrong
        (line,) = run.logged
        assert line.startswith(f"{path} is {'missing' if wrong is None else 'damaged'}") and "\n" not in line
        assert line.endswith(f"checkpoint {good.folder.name} is used instead")
        assert run.latest("weights.pt").folder == (good if is_read else bad).folder
    path.write_bytes(content)
    assert run.latest().folder == bad.folder


def test_every_file_is_in_the_manifest(run):
    saved = run.save(10).folder
    files = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert files == set(FILES) == set(Manifest.read(saved).digests) | {"manifest.json"}


def test_an_error_names_all_checkpoints_if_none_can_be_read(run):
    assert run.latest() is None
    places = [run.save(10).folder, run.save(20).folder]
    for place in places:
        (place / "counters.json").unlink()
    with pytest.raises(CheckpointError) as error:
        run.latest()
    assert all(f"{place / 'counters.json'} is missing" in str(error.value) for place in places)


def test_a_killed_save_leaves_no_checkpoint_and_does_not_prevent_the_next_save(run):
    saved = run.save(10)
    for name in ("saving", "removing-000000000005", f"removing-{saved.folder.name}"):
        shutil.copytree(saved.folder, run.checkpoints.folder / name)
    assert run.latest().folder == saved.folder
    for env_steps in (20, 30, 40):
        run.save(env_steps)
    (run.checkpoints.folder / "saving").mkdir()
    run.checkpoints.prepare(run.latest(), run.logged.append)
    assert run.names() == [f"{env_steps:012d}" for env_steps in (20, 30, 40)]


def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_new_one(run, monkeypatch):
    """It is in its place before the old one, which may be large, is removed."""
    old = run.save(10)

    def kill(path, **_):
        if "removing" in path.name and path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("algorithm.checkpointing.store.shutil.rmtree", kill)
        with run.checkpoints.create(10) as manifest, manifest.open_file("new.txt") as file:
            file.write(b"new")
    latest = run.latest()
    assert latest.folder == old.folder and not run.logged
    assert (latest.folder / "new.txt").read_bytes() == b"new"


def test_damaged_checkpoints_are_renamed_when_training_continues(run):
    run.save(10)
    bad = run.save(20)
    (bad.folder / "actor.npz").unlink()
    run.checkpoints.prepare(run.latest(), run.logged.append)
    assert run.names() == ["000000000010", "damaged-000000000020"]
    assert (run.save(20).folder / "actor.npz").exists()
    for env_steps in (30, 40):
        run.save(env_steps)
    assert run.names() == ["000000000020", "000000000030", "000000000040", "damaged-000000000020"]


class Code:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["weights.pt", "learner.pt", "replay.npz"])
def test_code_in_a_checkpoint_is_not_executed(run, name, tmp_path):
    """Someone who writes a checkpoint can write its digests, too."""
    saved, code, content = run.save(10), Code(tmp_path / "executed"), io.BytesIO()
    if name == "replay.npz":
        np.savez(content, code=np.array([code], object))
    else:
        torch.save({"parameters": code}, content)
    manifest = Manifest.read(saved.folder)
    with manifest.open_file(f"agent/{name}") as file:
        file.write(content.getvalue())
    manifest.write()
    components = run.parts.get("agent")
    with pytest.raises(CheckpointError):
        run.latest().restore_learner("agent", components.learner)
        run.latest().restore_experience("agent", components)
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def full_disk():
    """Limit the size of files to some kilobytes, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


def test_a_failed_save_leaves_the_other_checkpoints_unchanged(run, full_disk):
    saved = run.save(10)
    full_disk(6_000)
    with pytest.raises(OSError):
        run.save(20)
    full_disk(None)
    assert run.names() == [saved.folder.name]
    assert run.latest().folder == saved.folder
    assert run.save(30).folder == run.latest().folder


def test_a_failed_save_is_logged_and_is_an_error_only_for_the_final_checkpoint(run, full_disk):
    logged = []

    def log(line: str) -> None:
        logged.append(line)
        if limited and "cannot be written" in line:
            full_disk(None)

    limited = True
    full_disk(12_000)
    train(run.folder.load_settings(), run.folder, log)
    messages = [line for line in logged if "cannot be written" in line]
    assert len(messages) == 1
    assert "40 env steps" in messages[0] and "kept" in messages[0] and "the next save tries again" in messages[0]
    assert [int(path.name) for path in sorted((run.folder.path / "checkpoints").glob("0*"))] == [80, 100]

    limited = False
    settings = run.folder.load_settings(("test", {"base_config": {"max_step": 150}}))
    full_disk(12_000)
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(settings, run.folder, log)
    full_disk(None)
    assert int(run.folder.find_latest().folder.name) == 100
