"""Checkpoints are whole or not there, and one that is damaged is passed over aloud."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from algorithm.checkpointing.checkpoint import CheckpointError
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.store import CheckpointStore
from algorithm.config.loader import resolve
from algorithm.runs.build import make_limits, train
from algorithm.runs.make_env import make_adapter
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.team_builder import ComponentsBuilder
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.history import Counters, History
from algorithm.training.monitor import Monitor
from algorithm.training.reporter import Reporter

FILES = ["manifest.json", "counters.json", "actor.npz", "agent/weights.pt", "agent/learner.pt", "agent/replay.npz"]


class Run:
    """Small parts on a probe, and their checkpoints."""

    def __init__(self, tmp_path, keep=3):
        (tmp_path / "envs").mkdir()
        base = {"env_type": "PROBE", "env_name": "chain", "n_envs": 2, "max_step": 100, "save_every": 40}
        small = {"replay_config": {"capacity": 400}, "acer_config": {"learning_starts": 100}}
        settings = resolve([("test", {"base_config": base, **small})])
        self.folder = RunFolder.create("fake/task", tmp_path / "envs", "a", settings.tree)
        builder = ComponentsBuilder(settings, self.folder, None, lambda line: None)
        self.parts = TrainingComponents(make_adapter(settings, self.folder, 2), builder)
        self.actor = Actor(self.parts, seed=0)
        self.monitor = self._monitor(settings)
        self.checkpoints = CheckpointStore(tmp_path / "checkpoints", keep)
        self.said = []

    def _monitor(self, settings):
        history, ends = History(self.parts, Counters()), make_limits(settings)
        return Monitor(history, ends, Reporter(history, ends, None, print, print), None, None, None)

    def save(self, env_steps: int):
        for _ in range(5):
            self.actor.collect()
        return self.checkpoints.save(self.parts, Counters(env_steps=env_steps), self.actor, self.monitor)

    def latest(self, name=None):
        return self.checkpoints.latest(self.said.append, name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.folder.iterdir())


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARM = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", FILES)
def test_whatever_is_missing_or_cut_is_named_and_the_one_before_it_is_used(run, name, harm):
    good, bad = run.save(10), run.save(20)
    assert run.latest().folder == bad.folder and not run.said
    HARM[harm](bad.folder / name)
    assert run.latest().folder == good.folder
    assert len(run.said) == 1 and "\n" not in run.said[0]
    assert run.said[0].startswith(f"{bad.folder / name} is {'missing' if harm == 'missing' else 'damaged'}")
    assert run.said[0].endswith(f"checkpoint {good.folder.name} is used instead")


@pytest.mark.parametrize("name", FILES)
def test_one_wrong_bit_is_found_wherever_it_is(run, name):
    good, bad = run.save(10), run.save(20)
    path = bad.folder / name
    content = path.read_bytes()
    rng = random.Random(0)
    places = [0, len(content) - 1, *rng.sample(range(len(content)), min(60, len(content)))]
    for place in places:
        wrong = bytearray(content)
        wrong[place] ^= 1 << rng.randrange(8)
        path.write_bytes(wrong)
        run.said.clear()
        assert run.latest().folder == good.folder, place
        assert len(run.said) == 1 and run.said[0].startswith(f"{path} is damaged"), place
    path.write_bytes(content)
    assert run.latest().folder == bad.folder


def test_every_file_is_in_the_manifest(run):
    saved = run.save(10).folder
    files = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert files == set(FILES) == set(Manifest.read(saved).digests) | {"manifest.json"}


def test_only_what_is_needed_is_read(run):
    run.save(10)
    last = run.save(20)
    damage(last.folder / "agent" / "replay.npz")
    assert run.latest("weights.pt").folder == last.folder


def test_where_none_can_be_read_all_are_named_and_where_there_is_none_nothing_is(run):
    assert run.latest() is None
    places = [run.save(10).folder, run.save(20).folder]
    for place in places:
        (place / "counters.json").unlink()
    with pytest.raises(CheckpointError) as error:
        run.latest()
    assert all(f"{place / 'counters.json'} is missing" in str(error.value) for place in places)


def test_a_save_that_was_killed_leaves_nothing_that_is_taken_for_a_checkpoint(run):
    saved = run.save(10)
    shutil.copytree(saved.folder, run.checkpoints.folder / "saving")
    shutil.copytree(saved.folder, run.checkpoints.folder / "removing")
    assert run.latest().folder == saved.folder
    run.checkpoints.prepare(saved, run.said.append)
    assert run.names() == ["000000000010"]


def test_leftovers_do_not_hinder_the_next_save(run):
    saved = run.save(10)
    for name in ("saving", "removing"):
        shutil.copytree(saved.folder, run.checkpoints.folder / name)
    for env_steps in (20, 30, 40):
        run.save(env_steps)
    assert run.names() == ["000000000020", "000000000030", "000000000040"]


def test_damaged_ones_make_place_for_what_comes_instead(run):
    run.save(10)
    bad = run.save(20)
    (bad.folder / "actor.npz").unlink()
    run.checkpoints.prepare(run.latest(), run.said.append)
    assert run.names() == ["000000000010", "damaged-000000000020"]
    assert (run.save(20).folder / "actor.npz").exists()
    for env_steps in (30, 40):
        run.save(env_steps)
    assert run.names() == ["000000000020", "000000000030", "000000000040", "damaged-000000000020"]


def test_nothing_in_a_checkpoint_could_run(run):
    saved = run.save(10)
    for path in saved.folder.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays)


@pytest.fixture
def full_disk():
    """No file may become larger than some kilobytes, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


def test_what_cannot_be_written_leaves_everything_as_it_was(run, full_disk):
    saved = run.save(10)
    full_disk(6_000)
    with pytest.raises(OSError):
        run.save(20)
    full_disk(None)
    assert run.names() == [saved.folder.name]
    assert run.latest().folder == saved.folder
    assert run.save(30).folder == run.latest().folder


def test_a_save_that_fails_is_told_and_only_the_last_one_ends_the_run(run, full_disk):
    said = []

    def log(line: str) -> None:
        said.append(line)
        if limited and "cannot be written" in line:
            full_disk(None)

    limited = True
    full_disk(12_000)
    train(run.folder.load_settings(), run.folder, log)
    told = [line for line in said if "cannot be written" in line]
    assert len(told) == 1
    assert "40 env steps" in told[0] and "kept" in told[0] and "the next save tries again" in told[0]
    assert [int(path.name) for path in sorted((run.folder.path / "checkpoints").glob("0*"))] == [80, 100]

    limited = False
    settings = run.folder.load_settings(("test", {"base_config": {"max_step": 150}}))
    full_disk(12_000)
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(settings, run.folder, log)
    full_disk(None)
    assert int(run.folder.find_latest().folder.name) == 100
