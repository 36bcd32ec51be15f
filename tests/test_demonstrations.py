"""Recordings: what an adapter returned is in the file, and a file that is not one is one line."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import algorithm
from algorithm.adapters.demonstration_recorder import DemonstrationRecorder
from algorithm.adapters.probe import ProbeAdapter
from algorithm.demonstrations import Demonstrations, read_recording, write_recording
from algorithm.errors import UserError
from algorithm.rollout import Step
from tests.adapters.configs import config
from tests.demonstrated import play_randomly


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


class Scripted:
    """An adapter that returns Steps in their order; a row is for one lane, or has a list with a value for each."""

    def __init__(self, role, *rows):
        self.roles, self.rows = {"agent": role}, list(rows)

    def reset(self, seed):
        return self.receive()

    def send(self, actions):
        pass

    def receive(self):
        number, *values = self.rows.pop(0)
        first, bootstrap, reward, alive = map(np.atleast_1d, values)
        shape = len(first), *self.roles["agent"].obs_specs["obs"].shape
        return {
            "agent": Step(
                lane=np.arange(len(first)),
                obs={"obs": np.full(shape, number, np.float32)},
                first=first,
                is_bootstrap_row=bootstrap,
                reward=reward.astype(np.float32),
                alive=alive,
            )
        }


def test_rewards_and_ends_belong_to_the_action_before_them_and_running_episodes_are_left_out(recorded):
    role = replace(recorded["agent"].role, lanes=1)
    rows = [(0, True, False, 9, True), (1, False, False, 1, True), (2, True, False, 2, False)]  # a termination
    rows += [
        (3, False, False, 3, True),
        (4, False, True, 4, True),
        (5, True, False, 0, True),
        (6, False, False, 6, True),
    ]
    recorder = DemonstrationRecorder(Scripted(role, *rows))
    recorder.reset(0)
    n_episodes = []
    for action in range(len(rows) - 1):
        recorder.step({"agent": np.full((1, role.action_spec.size), action, np.float32)})
        n_episodes.append(sum(len(each.episodes) for each in recorder.collect().values()))
    assert n_episodes == [0, 1, 1, 2, 2, 2]  # a truncation needs no row after it
    one, two = recorder.collect()["agent"].episodes
    assert one.observations["obs"][:, 0].tolist() == [0, 1] and one.actions[:, 0].tolist() == [0, 1]
    assert one.rewards.tolist() == [1, 2] and one.terminated
    assert two.observations["obs"][:, 0].tolist() == [2, 3, 4]  # the last is the observation after a truncation
    assert two.actions[:, 0].tolist() == [2, 3] and two.rewards.tolist() == [3, 4] and not two.terminated


def test_of_a_lane_as_many_episodes_are_kept_as_an_evaluation_counts(recorded):
    role = replace(recorded["agent"].role, lanes=2)
    rows = [(t, [True, t % 9 == 0], [False, False], [1, 1], [True, True]) for t in range(30)]  # of 1 and 9 steps
    recorder = DemonstrationRecorder(Scripted(role, *rows))
    recorder.reset(0)
    for _ in rows[1:]:
        recorder.step({"agent": np.zeros((2, role.action_spec.size), np.float32)})
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
