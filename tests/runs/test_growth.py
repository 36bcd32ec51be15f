"""Agents that are added while a run trains: what is reported, recorded, saved, and refused."""

from __future__ import annotations

import json

import pytest

from algorithm.errors import UserError
from algorithm.runs import memory_budget as memory
from algorithm.runs.build import train
from algorithm.runs.run_folder import RunFolder
from tests.checkpointing.test_resume import go_on, new_run
from tests.fakes import MORE

pytestmark = pytest.mark.usefixtures("registered_fakes")
ADDED = "agents that are added"


def growing(tmp_path, **base) -> RunFolder:
    return new_run(tmp_path, "a", ADDED, **base)


def test_a_line_for_each_time_agents_are_added_and_the_checkpoint_has_them(tmp_path):
    folder, said = growing(tmp_path), []
    train(folder.load_settings(), folder, said.append)
    # One agent is added before anything is stored: all four share 150 rows, in columns of 8. Each later one gets 32.
    lines = [line.split(" bytes")[0].rsplit(" of ", 1)[0] for line in said if "replay: " in line]
    assert lines == [
        "replay: 144 rows",
        "agents: 3 -> 4; replay: 128 rows",
        "agents: 4 -> 5; replay: 160 rows",
        "agents: 5 -> 7; replay: 224 rows",
    ]
    checkpoint = folder.find_latest()
    assert checkpoint.lanes("agent") == (7, 4)
    assert folder.read_roles()["agent"].lanes == 7
    assert json.loads((folder.path / "roles.json").read_text())["agent"]["lanes"] == 7


def test_a_run_that_is_resumed_has_its_agents_from_the_start(tmp_path):
    folder, said = growing(tmp_path), []
    go_on(folder)
    train(folder.load_settings(("test", {"base_config": {"max_step": 300}})), folder, said.append)
    assert [line for line in said if "replay: " in line][0].startswith("replay: 224 rows")
    assert not any("agents: " in line for line in said)
    assert folder.find_latest().lanes("agent") == (7, 4)


def test_agents_whose_replay_does_not_fit_end_the_run_which_is_saved(tmp_path, monkeypatch):
    folder = growing(tmp_path)
    monkeypatch.setattr(memory, "measure_free_memory", lambda: 10_000)
    with pytest.raises(UserError, match=r"^agents: 4 -> 5; replay_config.capacity: 160 rows .* at most \d+ rows fit"):
        go_on(folder)
    assert folder.find_latest().lanes("agent") == (4, 4)
    assert 3 * 3 < folder.find_latest().counters.env_steps < 4 * max(MORE)


def test_agents_that_leave_no_room_for_a_window_each_are_refused(tmp_path):
    folder = growing(tmp_path, n_envs=1)
    tree = folder.load_settings().tree
    folder.record_settings(
        {**tree, "replay_config": {"capacity": 30}, "acer_config": {**tree["acer_config"], "learning_starts": 8}}, 0
    )
    with pytest.raises(UserError, match="replay_config.capacity: 30 rows over 2 lanes hold no sequence of 12 rows"):
        go_on(folder)


def test_iterations_count_with_the_agents_that_were_added(tmp_path):
    folder = growing(tmp_path, max_iter=6)
    counters = go_on(folder).counters
    # Each agent's episodes take six ticks, from its own first tick on: so one of each ends in any six ticks.
    assert counters.iterations == 6
    assert counters.env_steps < 230
