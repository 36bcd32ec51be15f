"""Goals of replayed sequences: achieved later in the same episode, with the rewards and terminations of that goal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.replay import ACHIEVED, DESIRED, Hindsight, Replay, UniformSampler
from algorithm.rollout import Rollout
from tests.builders import random_rollout
from tests.replay.samplers import PRIORITIZED

LANES, CHUNK = 3, 4


def compute_rewards(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reward 1 and terminate where the achieved goal is the desired one."""
    reached = (achieved == desired).all(-1)
    return reached.astype(np.float32), reached


class Player:
    """A player whose goals and episodes are known: the goal achieved at row n of a lane is n."""

    def __init__(self, seed: int = 0):
        self.rng, self.row = np.random.default_rng(seed), 0
        self.first: list[np.ndarray] = []  # of every row
        self.alive: list[np.ndarray] = []
        self.cuts: list[np.ndarray] = []  # rows that do not continue the row before

    def play(self, continues: bool = True) -> Rollout:
        rollout = random_rollout(self.rng, CHUNK, LANES)
        first, alive = rollout.first, rollout.alive
        if self.first:
            first[0] = self.first[-1] if continues else True
            self.first.pop()
        self.first += list(first)
        self.alive += list(alive)
        self.cuts += [np.full(LANES, not continues), *[np.zeros(LANES, bool)] * (CHUNK - 1)]
        number = np.arange(self.row, self.row + CHUNK + 1, dtype=np.float32)[:, None, None]
        obs = {ACHIEVED: np.broadcast_to(number, (CHUNK + 1, LANES, 1)).copy()}
        obs[DESIRED] = np.full_like(obs[ACHIEVED], -1)
        self.row += CHUNK
        continued = np.full(LANES, continues)
        return replace(rollout, obs=obs, reward=np.zeros_like(rollout.reward), continues_previous=continued)

    def find_last(self, lane: int, row: int) -> int:
        """Return the last row of the episode of a row, by looking at each row after it."""
        while row + 1 < len(self.first) and not self.first[row + 1][lane]:
            if row + 1 < len(self.cuts) and self.cuts[row + 1][lane]:
                break
            row += 1
        return row


def make_replay(share: float = 1.0, capacity: int = 60, length: int = 3, **changes) -> Replay:
    return Replay(
        capacity=capacity,
        lanes=LANES,
        chunk=CHUNK,
        length=length,
        rng=np.random.default_rng(1),
        hindsight=Hindsight(share=share, compute_rewards=compute_rewards),
        **changes,
    )


def check_batch(player: Player, batch: Rollout) -> int:
    """Compare each sequence with the rows that were played; return the number of those with another goal."""
    changed = 0
    for column in range(len(batch.lane)):
        lane, rows = int(batch.lane[column]), batch.obs[ACHIEVED][:, column, 0].astype(int)
        goals = batch.obs[DESIRED][:, column, 0]
        last = player.find_last(lane, rows[0])
        if goals[0] == -1:
            assert (goals == -1).all() and not batch.reward[:, column].any()
            continue
        changed += 1
        goal = goals[0]
        assert rows[0] < goal <= last
        for t, row in enumerate(rows):
            assert goals[t] == (goal if row <= last else -1)
        for t in range(len(batch)):
            if rows[t + 1] <= last:
                reached = rows[t + 1] == goal
                assert batch.reward[t, column] == reached and batch.alive[t, column] == (not reached)
            elif rows[t] == last:
                assert not batch.valid[t, column]  # what was achieved is not known
            else:
                assert batch.alive[t, column] == player.alive[rows[t]][lane]
    return changed


@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_goals_are_those_that_the_same_episode_reached_later(length, seed):
    player, replay = Player(seed), make_replay(length=length)
    changed = 0
    for number in range(40):  # more than the replay holds
        replay.add(player.play(continues=number % 7 != 3))
        if replay.rows > 8 * LANES:
            changed += check_batch(player, replay.sample(20))
    assert changed > 200


def test_every_later_goal_of_an_episode_is_drawn_equally_often():
    player, replay = Player(), make_replay(length=1, capacity=3 * 48)
    for _ in range(12):
        rollout = player.play()
        rollout.first[:] = False  # one long episode
        replay.add(rollout)
    offsets = []
    for _ in range(400):
        batch = replay.sample(64)
        first = batch.obs[ACHIEVED][0, :, 0]
        offsets += (batch.obs[DESIRED][0, :, 0] - first)[first == 20].tolist()
    counts = np.bincount(np.array(offsets, int), minlength=29)[1:]
    assert len(counts) == 28 and counts.min() > 0.4 * counts.mean() and counts.max() < 1.8 * counts.mean()


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_a_share_of_the_sequences_has_another_goal(share):
    player, replay = Player(), make_replay(share=share, length=1, capacity=300)
    for _ in range(20):
        rollout = player.play()
        rollout.first[:] = False
        replay.add(rollout)
    batch = replay.sample(3000)
    assert (batch.obs[DESIRED][0, :, 0] != -1).mean() == pytest.approx(share, abs=0.03)
    stored = replay.ring.arrays[f"obs/{DESIRED}"]
    assert set(np.unique(stored)) <= {-1, 0}  # the stored goals stay


@pytest.mark.parametrize("sampler", [UniformSampler, PRIORITIZED], ids=["uniform", "prioritized"])
def test_a_restored_replay_draws_the_same_goals(sampler):
    player, replay = Player(3), make_replay(length=2, sampler=sampler)
    for number in range(30):
        replay.add(player.play(continues=number % 7 != 3))
    restored = make_replay(length=2, sampler=sampler)
    restored.restore({name: value.copy() for name, value in replay.state().items()})
    restored.rng.bit_generator.state = replay.rng.bit_generator.state
    for number in range(10):
        one, two = replay.sample(16), restored.sample(16)
        np.testing.assert_array_equal(one.obs[DESIRED], two.obs[DESIRED])
        np.testing.assert_array_equal(one.reward, two.reward)
        check_batch(player, one)
        rollout = player.play(continues=number != 5)
        for each in (replay, restored):
            each.add(rollout)


def test_added_lanes_have_goals_of_their_own():
    player, replay = Player(), make_replay(length=1, capacity=120)
    for _ in range(5):
        replay.add(player.play())
    replay.grow(LANES + 2)
    for _ in range(5):
        replay.add(player.play())
    assert check_batch(player, replay.sample(50)) > 20
