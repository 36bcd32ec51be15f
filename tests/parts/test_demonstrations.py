"""Sources of a run: what fits a role is used, what does not is one line; and runs that learn from them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.demonstrations import write_recording
from algorithm.errors import UserError
from algorithm.parts.demonstrations import check_role, select_demonstrations
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from algorithm.specs import ACTION_MASK, TEAM_PRESENT, ActionSpec, ObsSpec
from tests.auxiliaries.test_demonstrations import make_player
from tests.builders import make_role
from tests.checkpointing.test_resume import new_run

pytestmark = pytest.mark.usefixtures("registered_fakes")
CLONING = {"auxiliaries": {"behavior_cloning": {"batch_size": 4}}}


def select(sources, role, name: str = "agent", **sections):
    """Return the demonstrations that a run with these settings uses."""
    settings = resolve([("test", {"demonstration_config": {"sources": sources}, **sections})])
    folder = RunFolder.create("fake/task", None, str(len(list(Path("runs").rglob("config.yaml")))), settings.tree)
    return select_demonstrations(settings, folder, name, role)


def test_a_role_uses_the_sources_that_name_it_and_otherwise_those_of_a_single_role():
    role = make_role()
    one, two = make_player(role, 20, 1), make_player(role, 40, 2)
    write_recording(Path("named.npz"), {"agent": one, "other": two})
    write_recording(Path("single.npz"), {"Player": two})
    write_recording(Path("both.npz"), {"agent": two, "other": two})
    for sources, rows in ((["named.npz"], 20), (["single.npz"], 40), (["named.npz", "both.npz", "single.npz"], 60)):
        found = select([*sources], role, **CLONING)
        assert len(found) == rows
    with pytest.raises(UserError, match="auxiliaries.behavior_cloning needs demonstrations of third"):
        select(["named.npz"], role, "third", **CLONING)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "demonstration_config.sources has no effect: set batch_share, or auxiliaries.behavior_cloning or gail"),
        (
            {"base_config": {"algorithm": "PPO"}, "demonstration_config": {"batch_share": 0.5, "sources": ["a.npz"]}},
            "demonstration_config.batch_share is for algorithms with a replay, not for PPO",
        ),
    ],
)
def test_sources_without_a_use_are_one_line(sections, message):
    write_recording(Path("a.npz"), {"agent": make_player(make_role())})
    with pytest.raises(UserError, match=message):
        select(["a.npz"], make_role(), **sections)


def test_a_use_without_sources_is_one_line():
    with pytest.raises(UserError, match="auxiliaries.behavior_cloning needs demonstrations: set demonstration_config"):
        select([], make_role(), **CLONING)
    with pytest.raises(UserError, match="batch_share needs sources"):
        resolve([("test", {"demonstration_config": {"batch_share": 0.5}})])


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (
            make_role(size=4),
            r"a.npz has observations obs \[3\] float32, .*; the environment has observations obs \[4\]",
        ),
        (make_role(actions=4), "a.npz has .* actions one of 3; the environment has .* one of 4"),
        (make_role(spec=ActionSpec(1, (3,))), "1 numbers from -1 to 1; one of 3"),
    ],
)
def test_other_spaces_are_one_line(role, message):
    with pytest.raises(UserError, match=message) as error:
        check_role("a.npz", make_player(make_role()), role)
    assert len(str(error.value).splitlines()) == 1


def test_observations_of_a_team_are_not_a_part_of_demonstrations():
    role = make_role()
    check_role("a.npz", make_player(role), replace(role, obs_specs={**role.obs_specs, TEAM_PRESENT: ObsSpec((3,))}))


def test_an_action_that_its_mask_forbids_is_one_line():
    role = make_role(masked=True)
    player = make_player(role)
    check_role("a.npz", player, role)
    row = int(np.flatnonzero(player.action[:, 0] == 2)[3])
    player.obs[ACTION_MASK][row, 2] = 0
    with pytest.raises(UserError, match=f"a.npz has an action that its mask forbids, in step {row + 1}"):
        check_role("a.npz", player, role)
    last = player.is_bootstrap_row.copy()
    last[row] = True
    check_role("a.npz", replace(player, is_bootstrap_row=last), role)  # whose action was not executed


def test_a_run_has_copies_of_its_files_also_of_those_in_the_folder_of_the_environment(tmp_path):
    source = tmp_path / "envs"
    source.mkdir()
    for path, rows in ((source / "own.npz", 20), (Path("given.npz"), 40)):
        write_recording(path, {"agent": make_player(make_role(), rows)})
    settings = resolve([("test", {"demonstration_config": {"sources": ["own.npz", "given.npz"]}, **CLONING})])
    folder = RunFolder.create("fake/task", source, "a", settings.tree)
    for path in (source / "own.npz", Path("given.npz")):
        path.unlink()
    assert len(select_demonstrations(settings, folder, "agent", make_role())) == 60
    (folder.path / "own.npz").unlink()
    (folder.path / "own.npz").symlink_to(tmp_path / "other.npz")
    with pytest.raises(UserError, match="demonstration_config.sources: .* is outside of"):
        select_demonstrations(settings, folder, "agent", make_role())


@pytest.mark.parametrize(
    ("sources", "message"),
    [(["none.npz"], "there is no file none.npz"), (["a.npz", "b/a.npz"], "two files have the name a.npz")],
)
def test_missing_and_ambiguous_files_are_one_line_and_leave_no_run(sources, message):
    Path("b").mkdir()
    for path in ("a.npz", "b/a.npz"):
        write_recording(Path(path), {"agent": make_player(make_role())})
    with pytest.raises(UserError, match=f"demonstration_config.sources: {message}"):
        select(sources, make_role(), **CLONING)
    assert not Path("runs").exists()


def test_every_runtime_learns_from_demonstrations_and_begins_in_the_same_way(tmp_path, prepared_workers):
    lines, kind = set(), "demonstrations, gru, acer"
    for runtime in ("WORKERS", "CLUSTER", "LOCAL"):
        folder, logged = new_run(tmp_path, runtime, kind, runtime=runtime, n_workers=2, max_iter=None), []
        train(folder.load_settings(), folder, logged.append)
        lines |= {line for line in logged if "before the run" in line}
        columns = (folder.path / "metrics.csv").read_text().splitlines()[0]
        assert "train/gail_reward" in columns and "train/behavior_cloning_log_prob" in columns
    logged.clear()
    train(folder.load_settings(("test", {"base_config": {"max_step": 260}})), folder, logged.append)
    assert not any("before the run" in line for line in logged)  # a resumed run is not pretrained again
    (line,) = lines
    assert re.fullmatch(r"behavior_cloning: 20 updates before the run, loss 0.69\d -> 0.[67]\d+", line)
