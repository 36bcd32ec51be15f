"""Recordings: what an adapter returned is in the file, and a file that is not one is one line."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest

import algorithm
from algorithm.adapters.demonstration_recorder import DemonstrationRecorder
from algorithm.adapters.probe import ProbeAdapter
from algorithm.demonstrations import Demonstrations, read_recording, write_recording
from algorithm.errors import UserError
from tests.adapters.configs import config
from tests.demonstrated import play_randomly
from tests.doubles import Row, ScriptedAdapter, make_step


@pytest.fixture(scope="module")
def recorded() -> dict[str, Demonstrations]:
    with closing(ProbeAdapter(config("chain", 3))) as adapter:
        return play_randomly(adapter, 5)


def test_a_file_holds_what_was_recorded(recorded, tmp_path):
    write_recording(tmp_path / "a.npz", recorded)
    (read,) = read_recording(tmp_path / "a.npz").values()
    (before,) = recorded.values()
    assert read.role == before.role and len(read) == len(before)
    for name in ("action", "reward", "alive", "first", "is_bootstrap_row"):
        np.testing.assert_array_equal(getattr(read, name), getattr(before, name))
    np.testing.assert_array_equal(read.obs["obs"], before.obs["obs"])
    (public,) = algorithm.read_demonstrations(tmp_path / "a.npz").values()
    assert len(public.episodes) == len(before.episodes)


def test_rewards_and_ends_belong_to_the_action_before_them_and_running_episodes_are_left_out():
    rows = [Row(0, 0, 9, first=True), Row(0, 1, 1), Row(0, 2, 2, alive=False, first=True)]  # a termination
    rows += [Row(0, 3, 3), Row(0, 4, 4, is_bootstrap_row=True), Row(0, 5, first=True), Row(0, 6, 6)]
    recorder = DemonstrationRecorder(ScriptedAdapter([{"agent": make_step(row)} for row in rows], agent=1))
    recorder.reset(0)
    n_episodes = []
    for action in range(len(rows) - 1):
        recorder.step({"agent": np.full((1, 1), action, np.float32)})
        n_episodes.append(sum(len(each.episodes) for each in recorder.collect().values()))
    assert n_episodes == [0, 1, 1, 2, 2, 2]  # a truncation needs no row after it
    one, two = recorder.collect()["agent"].episodes
    assert one.observations["obs"][:, 0].tolist() == [0, 1] and one.actions[:, 0].tolist() == [0, 1]
    assert one.rewards.tolist() == [1, 2] and one.terminated
    assert two.observations["obs"][:, 0].tolist() == [2, 3, 4]  # the last is the observation after a truncation
    assert two.actions[:, 0].tolist() == [2, 3] and two.rewards.tolist() == [3, 4] and not two.terminated


def test_of_a_lane_as_many_episodes_are_kept_as_an_evaluation_counts():
    ticks = [{"agent": make_step(Row(0, t, 1, first=True), Row(1, t, 1, first=t % 9 == 0))} for t in range(30)]
    recorder = DemonstrationRecorder(ScriptedAdapter(ticks, agent=2))  # episodes of 1 and 9 steps
    recorder.reset(0)
    for _ in ticks[1:]:
        recorder.step({"agent": np.zeros((2, 1), np.float32)})
    (kept,) = recorder.collect({"agent": [0, 1, 0]}).values()
    assert [len(episode.rewards) for episode in kept.episodes] == [1, 1, 9]
    assert recorder.collect({"other": [0]}) == {}


def damage(path, change) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def set_format(arrays) -> None:
    header = json.loads(str(arrays["header"]))
    arrays["header"] = np.array(json.dumps({**header, "format": "samara demonstrations 9"}))


DAMAGES = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:500]), "is not a recording, or is damaged"),
    "text": (lambda path: path.write_text("no"), "is not a recording, or is damaged"),
    "missing": (lambda path: path.unlink(), "there is no file"),
    "other version": (lambda path: damage(path, set_format), "of another version of this program"),
    "without an array": (lambda path: damage(path, lambda arrays: arrays.pop("0/reward")), "is damaged"),
    "rows": (lambda path: damage(path, lambda a: a.update({"0/reward": a["0/reward"][:-1]})), "reward has the shape"),
    "no header": (lambda path: damage(path, lambda arrays: arrays.pop("header")), "is not a recording"),
    "empty": (
        lambda path: damage(path, lambda a: a.update({key: a[key][:0] for key in a if key != "header"})),
        "it has no episode",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_one_line(recorded, tmp_path, name):
    path = tmp_path / "a.npz"
    write_recording(path, recorded)
    change, message = DAMAGES[name]
    change(path)
    with pytest.raises(UserError, match=message) as error:
        read_recording(path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("source", ["a.txt", "a"])
def test_another_kind_of_file_is_one_line(source):
    with pytest.raises(UserError, match=r"demonstrations are files .npz or .demo, or minari:ID"):
        algorithm.read_demonstrations(source)
