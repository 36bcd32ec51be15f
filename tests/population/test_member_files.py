"""The files of members as messages between machines."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from algorithm.checkpointing.checkpoint import CheckpointError, PackedFile
from algorithm.parts.run_folder import RunFolder
from algorithm.population.member_fleet import ChangedFiles, MemberFiles, read_member, write_member
from tests.population.members import list_files

CONTENT = {"agent/weights.pt": b"w", "agent/replay.npz": b"", "counters.json": b"{}"}


def make_folder(name: str) -> RunFolder:
    path = Path(name)
    path.mkdir()
    return RunFolder(path)


def save(folder: RunFolder, env_steps: int, **changes: bytes) -> None:
    """Save a checkpoint with files of a few bytes."""
    with folder.checkpoints(keep=5).create(env_steps) as manifest:
        for name, content in {**CONTENT, **changes}.items():
            with manifest.open_file(name) as file:
                file.write(content)


@pytest.fixture
def source() -> RunFolder:
    """Return a run folder with three checkpoints, the first of which is the best."""
    folder = make_folder("source")
    for env_steps in (100, 200, 300):
        save(folder, env_steps)
    store = folder.checkpoints(keep=5)
    store.best.set_best(store.list_all()[0], 7.0)
    (folder.path / "nn.py").write_text("blueprint = None\n")
    (folder.path / "metrics.csv").write_text("env_steps\n")
    (folder.path / "configs").mkdir()
    (folder.path / "configs" / "000.yaml").write_text("{}\n")
    (folder.path / ".lock").write_text("1")
    (folder.path / "roles.json.new").write_text("partly writ")
    return folder


def test_a_folder_on_another_machine_has_what_a_run_needs(source):
    target = make_folder("target")
    files = read_member(source, 5, print)
    write_member(target, files, keep=5)
    expected = list_files(source.path)
    missing = {name for name in expected if name.startswith("checkpoints/000000000200/")}
    assert list_files(target.path) == {
        name: content for name, content in expected.items() if name not in missing | {".lock", "roles.json.new"}
    }
    assert "nn.py" in files.others and list(files.checkpoints) == [100, 300]
    target.find_latest().check()
    assert target.find_best().folder.name == "000000000100"


def test_a_damaged_checkpoint_is_not_sent(source):
    lines: list[str] = []
    (source.path / "checkpoints" / "000000000300" / "counters.json").write_text("?")
    files = read_member(source, 5, lines.append)
    assert list(files.checkpoints) == [100, 200]
    assert "checkpoint 000000000200 is used instead" in lines[0]


def test_a_checkpoint_that_was_damaged_on_its_way_changes_nothing(source):
    target = make_folder("target")
    write_member(target, read_member(source, 5, print), keep=5)
    before = {name for name in list_files(target.path) if "saving" not in name}
    save(source, 400)
    packed = read_member(source, 5, print).checkpoints[400]
    weights = packed["agent/weights.pt"]
    for damaged, message in (
        ({**packed, "agent/weights.pt": replace(weights, content=np.frombuffer(b"v", np.uint8))}, "agent/weights.pt"),
        ({**packed, "../x": weights}, "is outside of"),
    ):
        with pytest.raises(ValueError, match=message):
            write_member(target, MemberFiles(checkpoints={400: damaged}, others={}), keep=5)
        assert {name for name in list_files(target.path) if "saving" not in name} == before


def test_another_file_that_was_damaged_on_its_way_changes_nothing(source):
    target = make_folder("target")
    files = read_member(source, 5, print)
    write_member(target, files, keep=5)
    damaged = {name: replace(file, digest="0") if name == "nn.py" else file for name, file in files.others.items()}
    (target.path / "metrics.csv").write_text("newer")
    before = list_files(target.path)
    with pytest.raises(CheckpointError, match=r"nn.py was damaged on its way"):
        write_member(target, MemberFiles(checkpoints={}, others=damaged), keep=5)
    assert list_files(target.path) == before


@pytest.mark.parametrize("name", ["../other.txt", "/tmp/other.txt", "a/../../other.txt"])
def test_a_file_outside_of_the_folder_is_an_error(name):
    files = MemberFiles(checkpoints={}, others={name: PackedFile(np.zeros(1, np.uint8), "0")})
    with pytest.raises(ValueError, match="is outside of"):
        write_member(make_folder("target"), files, keep=5)
    assert not Path("other.txt").exists()


def test_changes_are_sent_once_and_without_code(source):
    changed = ChangedFiles(source)
    assert not changed.has_checkpoint()
    save(source, 400)
    (source.path / "metrics.csv").write_text("env_steps\n400\n")
    (source.path / "nn.py").write_text("import os\n")
    (source.path / "log.txt").write_text("line\n")
    assert changed.has_checkpoint()
    files = changed.take()
    assert list(files.checkpoints) == [400] and sorted(files.others) == ["log.txt", "metrics.csv"]
    files = changed.take()
    assert not files.checkpoints and not files.others and not changed.has_checkpoint()


def test_a_checkpoint_that_is_complete_while_files_are_listed_is_no_error(source, monkeypatch):
    """Its folder gets another name then."""
    changed, scandir = ChangedFiles(source), os.scandir

    def remove_and_scan(path):
        if "saving" in Path(path).parts:
            raise FileNotFoundError(path)
        return scandir(path)

    (source.path / "checkpoints" / "saving" / "agent").mkdir(parents=True)
    (source.path / "log.txt").write_text("line\n")
    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert list(changed.take().others) == ["log.txt"]


def test_a_checkpoint_that_replaces_one_of_the_same_name_is_a_change(source):
    changed = ChangedFiles(source)
    save(source, 300, **{"counters.json": b"{ }"})
    ((env_steps, packed),) = changed.take().checkpoints.items()
    assert env_steps == 300 and packed["counters.json"].content.tobytes() == b"{ }"


def test_the_receiver_keeps_as_many_checkpoints_as_the_run(source):
    target = make_folder("target")
    write_member(target, read_member(source, 2, print), keep=2)
    changed = ChangedFiles(source)
    for env_steps in (400, 500):
        save(source, env_steps)
        write_member(target, changed.take(), keep=2)
    steps = [int(checkpoint.folder.name) for checkpoint in target.checkpoints(keep=2).list_all()]
    assert steps == [100, 400, 500]  # the best, and the newest two


def test_the_best_of_several_checkpoints_is_kept(source):
    """The record of the best checkpoint is written after the checkpoints, all of which may be newer than it states."""
    target = make_folder("target")
    write_member(target, read_member(source, 1, print), keep=1)
    changed = ChangedFiles(source)
    for env_steps in (400, 500):
        save(source, env_steps)
    store = source.checkpoints(keep=5)
    store.best.set_best(store.find("400"), 8.0)
    write_member(target, changed.take(), keep=1)
    assert target.find_best().folder.name == "000000000400"
