"""Test doubles with known contents: an agent whose outputs encode its inputs, a simulator that plays a script, and
rollouts in which every value encodes its lane and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
from torch import nn

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import DataSchedule
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents


class ParityAgent:
    """An agent whose action is the parity of the observation, and whose greedy action is the opposite.

    Its behavior is (observation, memory), and its memory counts steps.
    """

    def __init__(self, rollout_length: int, state: int = 1):
        self.schedule = DataSchedule(
            rollout_length=rollout_length,
            sequence_length=rollout_length,
            batch_size=1,
            replay_ratio=0.0,
            replay_count_distribution="fixed",
            learning_starts=0,
        )
        self.state_size = self.stored_state_size = state
        self.family = SimpleNamespace(statistics_size=1 + state)
        self.random_steps = self.random_decay_steps = 0
        self.rng = np.random.default_rng(0)
        self.policy = nn.Identity()

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        obs = step.obs["obs"][:, :1]
        sample = obs % 2
        return Decision(raw_action=sample, action=sample, behavior=np.concatenate([obs, memory], 1), memory=memory + 1)

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        decision = self.act(step, memory)
        return replace(decision, raw_action=1 - decision.raw_action, action=1 - decision.action)


@dataclass
class UpdateCounter:
    """A replacement of a learner with the only attributes that an actor reads."""

    updates: int = 0
    rows_seen: int = 0
    device: str = "cpu"


def make_components(adapter: Adapter, agent, learner=None) -> TrainingComponents:
    """Return components in which every role has this agent and no learner trains it."""
    return TrainingComponents(
        adapter,
        lambda name, role: AgentComponents(role=role, agent=agent, scheduler=None, learner=learner or UpdateCounter()),
        grow_components=lambda name, components, role: replace(components, role=role),
    )


@dataclass(frozen=True)
class Row:
    """The row of one lane in a scripted Step."""

    lane: int
    obs: float
    reward: float = 0.0
    alive: bool = True
    first: bool = False
    is_bootstrap_row: bool = False


def make_step(*rows: Row) -> Step:
    """Return a Step with one row per lane."""
    return Step(
        lane=np.array([row.lane for row in rows]),
        obs={"obs": np.array([[row.obs] for row in rows], np.float32)},
        first=np.array([row.first for row in rows]),
        is_bootstrap_row=np.array([row.is_bootstrap_row for row in rows]),
        reward=np.array([row.reward for row in rows], np.float32),
        alive=np.array([row.alive for row in rows]),
    )


class ScriptedAdapter(Adapter):
    """An adapter that returns scripted steps by role, and records the actions.

    The actions do not change the script. A lane that exceeds the number of lanes of its role is added to the role.
    """

    def __init__(self, ticks: Sequence[Mapping[str, Step]], **lanes: int):
        self.ticks = ticks
        self.roles = {
            name: Role(count, {"obs": ObsSpec((1,))}, ActionSpec(branches=(2,))) for name, count in lanes.items()
        }
        self.actions: list[dict[str, np.ndarray]] = []

    def reset(self, seed: int) -> dict[str, Step]:
        self.seed = seed
        self.actions = []
        return dict(self.ticks[0])

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.actions.append(dict(actions))
        steps = dict(self.ticks[len(self.actions)])
        lanes = {name: max(self.roles[name].lanes, *step.lane + 1) for name, step in steps.items()}
        self.roles = {name: replace(role, lanes=lanes.get(name, role.lanes)) for name, role in self.roles.items()}
        return steps

    def close(self) -> None:
        pass


def collect_ticks(actor: Actor, ticks: int) -> list[tuple[str, Rollout]]:
    """Return the rollouts, with their roles, that an actor completes in so many ticks without updates."""
    rollouts = []
    for _ in range(ticks):
        rollouts += actor.complete_rollouts()
        actor.act()
        actor.receive()
    return rollouts


def collect_lanes(adapter: Adapter, agent, seed: int, ticks: int) -> tuple[Actor, dict[int, Rollout]]:
    """Return the actor that collects so many ticks, and the rollout [T, 1] of each lane of the only role."""
    actor = Actor(make_components(adapter, agent), seed)
    return actor, join_lanes([rollout for _, rollout in collect_ticks(actor, ticks)])


def join_lanes(rollouts: Sequence[Rollout]) -> dict[int, Rollout]:
    """Join the columns of each lane to one rollout [T, 1] by lane; no lane may have lost any rows."""
    columns: dict[int, list[tuple[Rollout, int]]] = {}
    for rollout in rollouts:
        for b, lane in enumerate(rollout.lane.tolist()):
            columns.setdefault(lane, []).append((rollout, b))
    return {lane: _join_columns(parts) for lane, parts in columns.items()}


def _join_columns(parts: list[tuple[Rollout, int]]) -> Rollout:
    assert [bool(rollout.continues_previous[b]) for rollout, b in parts] == [False] + [True] * (len(parts) - 1)

    def rows(name):
        return np.concatenate([getattr(rollout, name)[:, b] for rollout, b in parts])[:, None]

    def rows_and_last_obs(values):
        return np.concatenate([*[value[:-1] for value in values], values[-1][-1:]])[:, None]

    names = parts[0][0].obs
    return replace(
        parts[0][0],
        obs={name: rows_and_last_obs([rollout.obs[name][:, b] for rollout, b in parts]) for name in names},
        first=rows_and_last_obs([rollout.first[:, b] for rollout, b in parts]),
        **{name: rows(name) for name in ("raw_action", "reward", "alive", "behavior")},
    )


class EncodedLanes:
    """A source of rollouts in which every value encodes its lane and time, with a record of what it has written."""

    def __init__(self, lanes: int, chunk: int):
        self.chunk = chunk
        self.written: list[list[int]] = [[] for _ in range(lanes)]  # the time of each row of each lane
        self._time = [0] * lanes

    def rollout(self, *lanes: int, lost: Sequence[int] = ()) -> Rollout:
        """Return a rollout with one column for each of `lanes`, which may contain a lane several times.

        Args:
            lanes: The lane of each column.
            lost: Lanes with a gap in time before their first column here.
        """
        starts, continues = [], []
        for lane in lanes:
            has_gap = lane in lost
            lost = [other for other in lost if other != lane]
            self._time[lane] += 100 if has_gap else 0
            continues.append(bool(self.written[lane]) and not has_gap)
            starts.append(self._time[lane])
            self._time[lane] += self.chunk
            self.written[lane] += range(starts[-1], self._time[lane])
        rollout = make_encoded_sequences(np.array(lanes), np.array(starts), self.chunk)
        return replace(rollout, continues_previous=np.array(continues), index=np.full(len(lanes), -1))

    def list_starts(self, rows: int, length: int, stride: int = 1, warmup_rows: int = 0) -> set[tuple[int, int]]:
        """Return each (lane, time) at which a sequence of `length` may start in a ring of `rows` rows per lane."""
        starts = set()
        for lane, written in enumerate(self.written):
            for start in range(max(0, len(written) - rows + 1), len(written) - length + 1):
                times = written[start : start + length + 1]  # one less if the sequence ends with the newest row
                if (start + warmup_rows) % stride == 0 and times == list(range(times[0], times[0] + len(times))):
                    starts.add((lane, times[0]))
        return starts


def make_encoded_sequences(lane: np.ndarray, start: np.ndarray, length: int) -> Rollout:
    """Return the expected contents of sequences [length, B] of `EncodedLanes` that start at these lanes and times."""
    time = start + np.arange(length + 1)[:, None]
    code = lane * 10_000.0 + time
    image = np.stack([lane + 0 * time, time // 256, time % 256], -1)
    rows = slice(None, -1)
    return Rollout(
        obs={"vector": np.stack([code, -code], -1).astype(np.float32), "image": image[..., None].astype(np.uint8)},
        first=(time + lane) % 5 == 0,
        raw_action=code[rows, :, None].astype(np.float32),
        reward=(-0.25 - code[rows]).astype(np.float32),
        alive=(time + 2 * lane)[rows] % 7 != 0,
        behavior=np.stack([code / 2, code, -code], -1)[rows].astype(np.float32),
        memory=np.stack([lane, start], -1).astype(np.float32),
        lane=lane,
        continues_previous=np.zeros(len(lane), bool),
        weight=np.ones(len(lane), np.float32),
        index=np.zeros(len(lane), np.int64),
        version=10 * start,
    )


def find_starts(rollout: Rollout) -> list[tuple[int, int]]:
    """Return the (lane, time) at which each sequence of `EncodedLanes` starts."""
    times = rollout.obs["vector"][0, :, 0].astype(int) - rollout.lane * 10_000
    return list(zip(rollout.lane.tolist(), times.tolist(), strict=True))


def assert_intact(rollout: Rollout) -> None:
    """Check that every row contains what was written for its lane and time, except memory and version."""
    lane, start = np.array(find_starts(rollout)).T
    expected = make_encoded_sequences(lane, start, len(rollout))
    for name in ("first", "raw_action", "reward", "alive", "behavior"):
        np.testing.assert_array_equal(getattr(rollout, name), getattr(expected, name), name)
    for name, value in expected.obs.items():
        np.testing.assert_array_equal(rollout.obs[name], value, name)
        assert rollout.obs[name].dtype == value.dtype
