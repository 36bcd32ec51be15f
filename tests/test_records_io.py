"""Records on disk: they are read as they were written, and damage of any kind is one line."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError, Manifest
from algorithm.checkpointing.store import BestCheckpoint
from algorithm.errors import UserError
from algorithm.parts.provenance import read_sessions
from algorithm.parts.run_folder import RunFolder
from algorithm.population.members import MemberPlan, PopulationFolder, PopulationState
from algorithm.records_io import (
    NumberTable,
    OpenRecord,
    RecordError,
    append_json_line,
    read_csv,
    read_json,
    read_json_lines,
    write_csv,
    write_json,
    write_json_lines,
)
from algorithm.runs.lineage import LineageRow
from algorithm.runs.results import read_record
from algorithm.tools.reports.gallery import GalleryEntry, read_gallery, write_gallery
from algorithm.tools.reports.report_files import Fact
from algorithm.tools.reports.run_data import read_run
from tests.tools.reports.run_folders import write_run
from tests.tracking.runs import make_run as make_tracked_run

Log = Callable[[str], None]


class Point(OpenRecord):
    x: int
    y: float | None


def test_records_are_read_as_they_were_written(tmp_path):
    path, record = tmp_path / "a.json", {"x": 3, "y": 0.1, "more": ["ä", None, {"z": True}]}
    for is_sealed in (False, True):
        write_json(path, record, is_sealed=is_sealed)
        assert read_json(path, Point) == record
        write_json_lines(path, [record, record], is_sealed=is_sealed)
        append_json_line(path, {"x": 4, "y": None})
        assert read_json_lines(path, Point) == ([record, record, {"x": 4, "y": None}], None)
    assert read_json(tmp_path / "b.json", Point) is None and read_json_lines(tmp_path / "b.json", Point) == ([], None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"x": 1.5, "y": 2}', "x: Input should be a valid integer"),
        ('{"x": "1", "y": 2}', "x: Input should be a valid integer"),
        ('{"x": 1, "y": "2"}', "y: Input should be a valid number"),
        ('{"x": 1}', "y: Field required"),
        ('{"x": 1, "y": NaN}', "expected value at line 1"),
        ('{"x": 1, "y": 2, "more": -Infinity}', "invalid number at line 1"),
        ('{"x": 1, "y": 2, "more": 1e999}', "Out of range float"),
        ('{"x": 1, "y": 2, "more": "\\ud800"}', "hex escape"),
        ('{"x": 1, "y": 2}\n{"x"', "trailing characters"),
        ("[" * 100_000, "recursion limit"),
        ("", "EOF"),
        ("[]", "Input should be"),
    ],
)
def test_a_damaged_record_is_one_line(tmp_path, content, reason):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(RecordError) as error:
        read_json(path, Point)
    assert str(error.value).startswith(f"{path} is damaged (") and reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_number_that_is_not_finite_is_never_written(tmp_path):
    for write in (write_json, append_json_line, lambda path, record: write_json_lines(path, [record])):
        with pytest.raises(ValueError, match="JSON compliant"):
            write(tmp_path / "a", {"x": 1, "y": float("nan")})


def test_a_line_after_one_that_was_cut_is_not_lost(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1, "y": 1}\n{"x": 2, ')
    append_json_line(path, {"x": 3, "y": 3})
    records, problem = read_json_lines(path, Point)
    assert [record["x"] for record in records] == [1, 3]
    assert problem and problem.startswith(f"{path} is damaged in 1 of its lines (line 2: ")


def test_a_table_is_read_without_its_damaged_lines(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, ["n", "x, y"], [{"n": 1, "x, y": 0.5}, {"n": 2}, {"n": 3, "x, y": "nan"}])
    with path.open(newline="") as file:
        assert [*csv.reader(file)] == [["n", "x, y"], ["1", "0.5"], ["2", ""], ["3", "nan"]]
    path.write_bytes(path.read_bytes().replace(b"2,", b"2\xff,"))
    table = read_csv(path, "n")
    assert [row["n"] for row in table.rows] == ["1", "3"] and (table.damaged, table.gaps) == (1, (1,))
    assert read_csv(tmp_path, "n").damaged == 1  # a folder
    assert read_csv(tmp_path / "b.csv", "n") == NumberTable([], [], 0)


@dataclass(frozen=True)
class RecordFile:
    """A file that this project writes, and its reader, which logs a line or raises an error of one line for damage.

    `is_sealed`: whether damage is always found; otherwise a changed digit may be read as it is.
    """

    path: Path
    read: Callable[[Log], Any]
    is_sealed: bool = False


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, RecordFile]:
    """Every record file, by its name."""
    root = tmp_path_factory.mktemp("records")
    run, best = write_run(root / "gym/cartpole/first"), BestCheckpoint(root)
    (root / "000000000100").mkdir()
    best.set_best(Checkpoint(root / "000000000100"), 1.5)
    manifest = Manifest(root)
    with manifest.open_file("counters.json") as file:
        file.write(b'{"counters": {}}')
    manifest.write()
    population, settings = PopulationFolder(root, 2), {"acer_config.gamma": 0.99}
    plan = MemberPlan(parent=1, settings=settings)
    population.write_state(PopulationState(interval=2, members=[plan, plan], exchange={"returns": [[1.0], []]}))
    population.write_lineage(
        [
            LineageRow(interval=1, member=member, parent=member, env_steps=9, settings=settings, mean_return=0.5)
            for member in (1, 2, 3)
        ]
    )
    entry = GalleryEntry(
        environment="a/b", algorithm="ACER", goal=1.0, reached=True, env_steps=9, seconds=1.0, limit=None,
        mean_return=1.0, machine="", facts=[Fact(name="steps", value="9")],
    )  # fmt: skip
    write_gallery(root, {"a/b": entry}, {"c/d": "no goal"})
    tracked = make_tracked_run(root)
    tracked.write_id("wandb", "k4")
    return {
        "result.json": RecordFile(run / "result.json", lambda log: read_record(run, log)),
        "sessions.jsonl": RecordFile(run / "sessions.jsonl", lambda log: read_sessions(run, log)),
        "roles.json": RecordFile(run / "roles.json", lambda log: RunFolder(run).read_roles(), is_sealed=True),
        "networks.json": RecordFile(run / "networks.json", lambda log: _read_networks(run, log), is_sealed=True),
        "metrics.csv": RecordFile(run / "metrics.csv", lambda log: read_record(run, log)),
        "config.yaml": RecordFile(run / "config.yaml", lambda log: _read_networks(run, log)),
        "best.json": RecordFile(root / "best.json", lambda log: BestCheckpoint(root).mean, is_sealed=True),
        "manifest.json": RecordFile(root / "manifest.json", lambda log: Manifest.read(root).check(), is_sealed=True),
        "population.json": RecordFile(population.state_path, lambda log: population.read_state(), is_sealed=True),
        "lineage.jsonl": RecordFile(population.lineage_path, population.read_lineage, is_sealed=True),
        "gallery.json": RecordFile(root / "gallery.json", lambda log: read_gallery(root)),
        "tracker.json": RecordFile(root / "tracker.json", lambda log: tracked.read_id("wandb")),
    }


def _read_networks(run: Path, log: Log) -> Any:
    data = read_run(run)
    for line in data.problems:
        log(f"{run}/{line}")
    return data.networks


NAMES = (
    "result.json", "sessions.jsonl", "roles.json", "networks.json", "metrics.csv", "config.yaml", "best.json",
    "manifest.json", "population.json", "lineage.jsonl", "gallery.json", "tracker.json",
)  # fmt: skip
SLOW = ("networks.json", "config.yaml", "metrics.csv")  # the whole run folder is read, or long tables


def mutate(content: bytes, count: int) -> Iterator[bytes]:
    """Yield damaged contents of a file: cut, with changed bits, with other types, other bytes and NaN."""
    rng = np.random.default_rng(5)
    yield from (content[:end] for end in range(0, len(content) - 1, max(1, len(content) // count)))
    for place, bit in zip(rng.integers(len(content), size=count), rng.integers(8, size=count), strict=True):
        yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    yield from (b"[]", b"{}", b"null", b"3", b'"text"', b"\xff\xfe\x00", b"\n\n", b'{"a": NaN}', bytes(range(256)))
    yield content.replace(b"a", b"\xe4")  # latin-1
    numbers = [match.start() + 1 for match in re.finditer(rb" \d", content)]
    for place in random.Random(5).sample(numbers, min(len(numbers), count // 4)):
        for other in (b"NaN", b"1e999, 0", b'"a"', b"[]", b"null"):
            yield content[:place] + other + content[place + 1 :]


@pytest.mark.parametrize("name", NAMES)
def test_every_damaged_file_is_at_most_one_line(name, files, caplog):
    file = files[name]
    assert set(files) == set(NAMES)
    content, expected = file.path.read_bytes(), file.read(pytest.fail)
    try:
        for damaged in mutate(content, 8 if name in SLOW else 60):
            file.path.write_bytes(damaged)
            value, lines = _read(file, caplog)
            assert len(lines) <= 1, (damaged, lines)
            if file.is_sealed and damaged != content and value:  # whole lines may be missing at the end
                assert lines or (name == "lineage.jsonl" and value == expected[: len(value)]), damaged
            json.dumps(value, allow_nan=False, default=str)
        file.path.unlink()
        file.path.mkdir()
        _, lines = _read(file, caplog)
        assert len(lines) == 1
    finally:
        shutil.rmtree(file.path, ignore_errors=True)
        file.path.write_bytes(content)


def _read(file: RecordFile, caplog: pytest.LogCaptureFixture) -> tuple[Any, list[str]]:
    """Return what is read, and the lines about damage; each names the file, and is one line."""
    lines: list[str] = []
    value = None
    caplog.clear()
    try:
        value = file.read(lines.append)
    except (UserError, CheckpointError) as error:
        lines.append(str(error))
    lines += caplog.messages
    for line in lines:
        assert len(line.splitlines()) == 1 and file.path.name in line, line
    return value, lines
