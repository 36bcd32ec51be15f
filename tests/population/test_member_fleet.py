"""Members in services of a host: a population there equals one in this process, also after faults and on resume.

Then the files of members, as messages between machines.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from algorithm.checkpointing.checkpoint import CheckpointError, PackedFile
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.population import member_fleet
from algorithm.population.member_fleet import MemberMessage, read_member, take_changes, write_member
from algorithm.population.members import MemberFailed
from algorithm.processes.host import ServiceLost
from tests.population import members
from tests.population.members import CONFIG, list_files, read_state, train_quickly
from tests.processes.inline_host import InlineHost, fail_once
from tests.task_folder import NN, write_task

SHORT = {"base_config": {"max_step": 60}}
train_new = partial(members.train_new, train=train_quickly)
resume = partial(members.resume, train=train_quickly)


@pytest.fixture(autouse=True)
def task() -> Path:
    """Create the folder mine/task."""
    return write_task(CONFIG)


@pytest.fixture(autouse=True)
def inline_members(monkeypatch, tmp_path):
    """Train the members of remote services in this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(member_fleet, "ProcessHost", InlineHost)


@pytest.fixture
def hosts() -> list[InlineHost]:
    return []


@pytest.fixture
def make_fleet(hosts, monkeypatch):
    """Return a function that returns `make_fleet` of a population, with faults of the host."""

    def make(count=2, timeout=60.0, start_timeout=60.0, lost=(), silent=(), change=lambda it: it, shares_files=False):
        def open_fleet(members, settings, log):
            host = InlineHost(change)
            host.shares_files = shares_files
            host.lost, host.silent = set(lost), {*silent, *((index, 0, 0) for index in range(count, 4))}
            hosts.append(host)
            monkeypatch.setattr(member_fleet, "open_host", lambda *_: host)
            fleet = member_fleet.MemberFleet(members, settings, log)
            fleet.count, fleet.reply_timeout, fleet.start_timeout = 4, timeout, start_timeout
            return fleet

        return open_fleet

    return make


def assert_equal_to_one_process(make_fleet) -> None:
    """Train a short population in services and in this process; check that lineage and checkpoints are the same."""
    assert train_new("there", **SHORT, make_fleet=make_fleet) == train_new("here", **SHORT)
    assert read_state("there") == read_state("here")


def test_a_population_on_a_cluster_equals_one_in_this_process(make_fleet, hosts):
    expected = train_new("here")
    rows = train_new("there", make_fleet=make_fleet())
    assert rows == expected and read_state("there") == read_state("here")
    assert hosts[0].is_closed and not hosts[0].killed and hosts[0].methods.count("begin") == 12
    for member in range(1, 5):
        here, there = (RunFolder.find("mine/task", f"{name}-{member}").path for name in ("here", "there"))
        assert list_files(there).keys() == list_files(here).keys()
        assert (there / "log.txt").read_text() == (here / "log.txt").read_text()


def test_a_population_that_moves_between_cluster_and_processes(make_fleet):
    expected = train_new("whole")
    train_new("part", base_config={"max_step": 60}, make_fleet=make_fleet())
    resume("part", base_config={"max_step": 120})
    rows = resume("part", make_fleet=make_fleet(1), base_config={"max_step": 180}, population_config={"processes": 1})
    assert rows == expected and read_state("part") == read_state("whole")


def test_members_of_actors_that_end_are_trained_by_others(make_fleet, hosts, capsys):
    assert_equal_to_one_process(make_fleet(lost=[(0, 0, 0), (1, 0, 1), (0, 1, 2)]))
    assert hosts[0].killed == [(0, 0), (1, 0), (0, 1)]
    assert "its process ended (killed): it continues from its last checkpoint" in capsys.readouterr().out


def test_a_member_whose_process_on_another_machine_ends_is_trained_again(make_fleet, monkeypatch, capsys):
    fetch, ends = InlineHost.fetch, iter([ServiceLost("crashed")])

    def fetch_or_end(self, ticket):
        if len(ticket) == 1 and (end := next(ends, None)):  # of a service without numbers
            raise end
        return fetch(self, ticket)

    monkeypatch.setattr(InlineHost, "fetch", fetch_or_end)
    assert_equal_to_one_process(make_fleet())
    assert "its process crashed: it continues from its last checkpoint" in capsys.readouterr().out


def test_an_actor_that_does_not_reply_is_replaced(make_fleet, hosts, capsys):
    assert_equal_to_one_process(make_fleet(silent=[(0, 0, 1)], timeout=0.2))
    assert (0, 0) in hosts[0].killed
    assert "has not replied for 0.2 s (cluster_config.timeout)" in capsys.readouterr().out


def damage(reply):
    """Damage the last checkpoint of a reply, as a fault of the network would."""
    checkpoints = dict(reply.checkpoints)
    last = max(checkpoints)
    counters = checkpoints[last]["counters.json"]
    checkpoints[last] = {"counters.json": replace(counters, content=np.zeros_like(counters.content))}
    return replace(reply, checkpoints=checkpoints)


def add_code(reply):
    """Add code to a reply."""
    return replace(reply, others={"nn.py": PackedFile(np.zeros(1, np.uint8), "0")})


@pytest.mark.parametrize(
    ("change", "message"), [(damage, "counters.json was damaged on its way"), (add_code, "a service has sent code")]
)
def test_files_that_are_not_accepted_are_requested_again(make_fleet, hosts, change, message, capsys):
    changes = iter([change] * 2)

    def change_twice(reply):
        has_checkpoints = isinstance(reply, MemberMessage) and reply.checkpoints
        return changed(reply) if has_checkpoints and (changed := next(changes, None)) else reply

    assert_equal_to_one_process(make_fleet(change=change_twice))
    assert len(hosts[0].killed) == 2
    assert message in capsys.readouterr().out
    assert all((RunFolder.find("mine/task", f"there-{k}").path / "nn.py").read_text() == NN for k in range(1, 5))


def test_actors_that_cannot_start_end_the_population(make_fleet, hosts):
    lost = [(index, replacements, 0) for index in range(4) for replacements in range(9)]
    with pytest.raises(
        MemberFailed, match=r"cannot be trained: process 0 of the members ended \(killed\) before its first"
    ):
        train_new("there", make_fleet=make_fleet(lost=lost))
    assert hosts[0].is_closed


def test_a_cluster_without_room_is_an_error_of_one_line(make_fleet, hosts):
    with pytest.raises(UserError, match=r"no member has started within 0.1 s \(cluster_config.start_timeout\)"):
        train_new("there", make_fleet=make_fleet(count=0, start_timeout=0.1))
    assert hosts[0].is_closed and not Path("runs/mine/task/there").exists()


def test_the_time_to_start_begins_again_with_the_process_that_replaces_another(make_fleet, hosts):
    def train_slowly(*arguments, **named):
        time.sleep(0.3)  # longer than the time to start
        return train_quickly(*arguments, **named)

    fleet = make_fleet(1, start_timeout=0.2, lost=[(0, 0, 3)])  # the only process ends in its third interval
    members.train_new("there", train=train_slowly, make_fleet=fleet, **SHORT)
    assert hosts[0].killed == [(0, 0)]


def test_an_error_of_the_user_names_the_files_of_this_machine(make_fleet, task):
    (task / "nn.py").write_text("raise ValueError('no network')\n")
    with pytest.raises(UserError) as failure:
        train_new("there", make_fleet=make_fleet())
    assert str(failure.value).startswith(f"{Path('runs/mine/task/there-').absolute()}")
    assert "nn.py, line 1: ValueError: no network" in str(failure.value)


def test_members_are_stopped_when_one_reaches_the_goal(make_fleet, hosts, monkeypatch):
    wait = InlineHost.wait
    monkeypatch.setattr(InlineHost, "wait", lambda *given: sorted(wait(*given), key=lambda ticket: ticket[-1])[:1])
    rows = train_new("there", goal={"return": -1e9}, make_fleet=make_fleet())
    assert [row.goal_reached for row in rows] == [True]
    assert hosts[0].methods.count("stop") >= 1 and not hosts[0].killed


def test_a_server_whose_disk_is_full(monkeypatch, make_fleet, capsys):
    monkeypatch.setattr(member_fleet, "write_member", fail_once(member_fleet.write_member))
    assert_equal_to_one_process(make_fleet())
    assert "No space left on device: it continues from its last checkpoint" in capsys.readouterr().out


def test_members_in_services_with_the_run_folders_send_no_files(make_fleet, hosts):
    assert_equal_to_one_process(make_fleet(shares_files=True, lost=[(1, 0, 1)]))
    assert "poll" not in hosts[0].methods and hosts[0].killed == [(1, 0)]


def hang(task):
    """Train a member, until a signal."""
    Path(task.started).touch()
    while True:
        time.sleep(0.1)


@pytest.fixture
def fleet(prepared_workers):
    """Return a fleet of a process that hangs."""
    members = SimpleNamespace(run_task=hang, folders=[Path("member")])
    settings = resolve([("test", {"population_config": {"timeout": 0.5, "processes": 1}})])
    with closing(member_fleet.MemberFleet(members, settings, print)) as fleet:
        yield fleet


def test_a_member_that_exceeds_the_time_limit_is_killed(fleet):
    task = SimpleNamespace(member=1, started=Path("started").absolute())
    ((ended, result),) = fleet.train([task])
    assert ended is task
    assert str(result) == "its process has not ended its interval within 0.5 s (population_config.timeout)"
    assert fleet.supervisor.replaced == 1


def test_a_member_that_is_stopped_receives_one_signal(fleet):
    fleet.timeout = inf
    task = SimpleNamespace(member=1, started=Path("started").absolute())
    results, signals = fleet.train([task]), []
    interrupt = fleet.host.interrupt
    fleet.host.interrupt = lambda handle: signals.append(1) or interrupt(handle)
    wait = fleet.host.wait

    def wait_or_stop(tickets, timeout):
        if task.started.exists() and not signals:
            raise KeyboardInterrupt
        return wait(tickets, 0.05)

    fleet.host.wait = wait_or_stop
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert signals == [1] and not fleet.supervisor.services[0].calls


def test_members_train_like_single_runs(make_fleet):
    cluster = {"base_config": {"runtime": "RAY", "max_step": 60}, "cluster_config": {"timeout": 9.0}}
    train_new("there", **cluster, make_fleet=make_fleet())
    settings = RunFolder.find("mine/task", "there-1").load_settings()
    assert settings.base.runtime == "LOCAL" and settings.cluster.timeout == 300


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
            write_member(target, MemberMessage(checkpoints={400: damaged}), keep=5)
        assert {name for name in list_files(target.path) if "saving" not in name} == before


def test_another_file_that_was_damaged_on_its_way_changes_nothing(source):
    target = make_folder("target")
    files = read_member(source, 5, print)
    write_member(target, files, keep=5)
    damaged = {name: replace(file, digest="0") if name == "nn.py" else file for name, file in files.others.items()}
    (target.path / "metrics.csv").write_text("newer")
    before = list_files(target.path)
    with pytest.raises(CheckpointError, match=r"nn.py was damaged on its way"):
        write_member(target, MemberMessage(others=damaged), keep=5)
    assert list_files(target.path) == before


@pytest.mark.parametrize("name", ["../other.txt", "/tmp/other.txt", "a/../../other.txt"])
def test_a_file_outside_of_the_folder_is_an_error(name):
    files = MemberMessage(others={name: PackedFile(np.zeros(1, np.uint8), "0")})
    with pytest.raises(ValueError, match="is outside of"):
        write_member(make_folder("target"), files, keep=5)
    assert not Path("other.txt").exists()


def test_changes_are_sent_once_and_without_code(source):
    sent = member_fleet.list_stamps(source)
    (source.path / "metrics.csv").write_text("env_steps\n400\n")
    assert take_changes(source, sent, needs_checkpoint=True) == MemberMessage()
    save(source, 400)
    (source.path / "nn.py").write_text("import os\n")
    (source.path / "log.txt").write_text("line\n")
    files = take_changes(source, sent, needs_checkpoint=True)
    assert list(files.checkpoints) == [400] and sorted(files.others) == ["log.txt", "metrics.csv"]
    assert take_changes(source, sent) == MemberMessage()


def test_a_checkpoint_that_is_complete_while_files_are_listed_is_no_error(source, monkeypatch):
    """Its folder gets another name then."""
    sent, scandir = member_fleet.list_stamps(source), os.scandir

    def remove_and_scan(path):
        if "saving" in Path(path).parts:
            raise FileNotFoundError(path)
        return scandir(path)

    (source.path / "checkpoints" / "saving" / "agent").mkdir(parents=True)
    (source.path / "log.txt").write_text("line\n")
    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert list(take_changes(source, sent).others) == ["log.txt"]


def test_a_checkpoint_that_replaces_one_of_the_same_name_is_a_change(source):
    sent = member_fleet.list_stamps(source)
    save(source, 300, **{"counters.json": b"{ }"})
    ((env_steps, packed),) = take_changes(source, sent).checkpoints.items()
    assert env_steps == 300 and packed["counters.json"].content.tobytes() == b"{ }"


def test_the_receiver_keeps_as_many_checkpoints_as_the_run(source):
    target = make_folder("target")
    write_member(target, read_member(source, 2, print), keep=2)
    sent = member_fleet.list_stamps(source)
    for env_steps in (400, 500):
        save(source, env_steps)
        write_member(target, take_changes(source, sent), keep=2)
    steps = [int(checkpoint.folder.name) for checkpoint in target.checkpoints(keep=2).list_all()]
    assert steps == [100, 400, 500]  # the best, and the newest two


def test_the_best_of_several_checkpoints_is_kept(source):
    """The record of the best checkpoint is written after the checkpoints, all of which may be newer than it states."""
    target = make_folder("target")
    write_member(target, read_member(source, 1, print), keep=1)
    sent = member_fleet.list_stamps(source)
    for env_steps in (400, 500):
        save(source, env_steps)
    store = source.checkpoints(keep=5)
    store.best.set_best(store.find("400"), 8.0)
    write_member(target, take_changes(source, sent), keep=1)
    assert target.find_best().folder.name == "000000000400"
