"""Small stand-ins with known contents: an agent that shows what it was given, simulators that play a script, and
lanes whose every number tells where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import DataSchedule
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.components import AgentComponents, TrainingComponents


class ShowingAgent:
    """Acts by the parity of the observation; its behavior is what it saw (observation, memory), its memory counts rows.

    Greedily it does the opposite.
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
class Clock:
    """All that an actor reads of a learner."""

    updates: int = 0


def parts_of(adapter: Adapter, agent, learner=None) -> TrainingComponents:
    """Parts in which every role has this agent, and nobody learns."""
    return TrainingComponents(
        adapter,
        lambda name, role: AgentComponents(role=role, agent=agent, scheduler=None, learner=learner or Clock()),
        grow_components=lambda name, team, role: replace(team, role=role),
    )


@dataclass(frozen=True)
class Row:
    """One lane's row of a scripted Step."""

    lane: int
    obs: float
    reward: float = 0.0
    alive: bool = True
    first: bool = False
    final: bool = False


def step_of(*rows: Row) -> Step:
    return Step(
        lane=np.array([row.lane for row in rows]),
        obs={"obs": np.array([[row.obs] for row in rows], np.float32)},
        first=np.array([row.first for row in rows]),
        is_bootstrap_row=np.array([row.final for row in rows]),
        reward=np.array([row.reward for row in rows], np.float32),
        alive=np.array([row.alive for row in rows]),
    )


class ScriptedAdapter(Adapter):
    """Plays {role: Step} after {role: Step}, whatever the actions, which it keeps; lanes beyond a role's are added."""

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
        most = {name: max(self.roles[name].lanes, *step.lane + 1) for name, step in steps.items()}
        self.roles = {name: replace(role, lanes=most.get(name, role.lanes)) for name, role in self.roles.items()}
        return steps

    def close(self) -> None:
        pass


def lanes_of(rollouts: Sequence[Rollout]) -> dict[int, Rollout]:
    """Each lane's columns as one long column [T, 1]; the lanes must never have lost any."""
    columns: dict[int, list[tuple[Rollout, int]]] = {}
    for rollout in rollouts:
        for b, lane in enumerate(rollout.lane.tolist()):
            columns.setdefault(lane, []).append((rollout, b))
    return {lane: _joined(parts) for lane, parts in columns.items()}


def _joined(parts: list[tuple[Rollout, int]]) -> Rollout:
    assert [bool(rollout.continues_previous[b]) for rollout, b in parts] == [False] + [True] * (len(parts) - 1)

    def rows(name):
        return np.concatenate([getattr(rollout, name)[:, b] for rollout, b in parts])[:, None]

    def rows_and_one(values):
        return np.concatenate([*[value[:-1] for value in values], values[-1][-1:]])[:, None]

    names = parts[0][0].obs
    return replace(
        parts[0][0],
        obs={name: rows_and_one([rollout.obs[name][:, b] for rollout, b in parts]) for name in names},
        first=rows_and_one([rollout.first[:, b] for rollout, b in parts]),
        **{name: rows(name) for name in ("raw_action", "reward", "alive", "behavior")},
    )


class EncodedLanes:
    """Writes rollouts in which every field of every row tells its lane and its time, and knows what it wrote."""

    def __init__(self, lanes: int, chunk: int):
        self.chunk = chunk
        self.written: list[list[int]] = [[] for _ in range(lanes)]  # the time of each row of each lane
        self._time = [0] * lanes

    def rollout(self, *lanes: int, lost: Sequence[int] = ()) -> Rollout:
        """A column for each of `lanes`, in which a lane may stand more than once; `lost` ones lost rows before."""
        starts, joined = [], []
        for lane in lanes:
            breaks = lane in lost
            lost = [other for other in lost if other != lane]
            self._time[lane] += 100 if breaks else 0
            joined.append(bool(self.written[lane]) and not breaks)
            starts.append(self._time[lane])
            self._time[lane] += self.chunk
            self.written[lane] += range(starts[-1], self._time[lane])
        rollout = window_of(np.array(lanes), np.array(starts), self.chunk)
        return replace(rollout, continues_previous=np.array(joined), index=np.full(len(lanes), -1))

    def legal(self, rows: int, window: int, stride: int = 1, lead: int = 0) -> set[tuple[int, int]]:
        """(lane, time) at which a window may start in a ring of `rows` rows per lane: listed one by one."""
        starts = set()
        for lane, written in enumerate(self.written):
            for start in range(max(0, len(written) - rows + 1), len(written) - window + 1):
                times = written[start : start + window + 1]  # one less where the newest row is the last
                if (start + lead) % stride == 0 and times == list(range(times[0], times[0] + len(times))):
                    starts.add((lane, times[0]))
        return starts


def window_of(lane: np.ndarray, start: np.ndarray, length: int) -> Rollout:
    """What windows [length, B] of encoded lanes must contain."""
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


def starts_of(rollout: Rollout) -> list[tuple[int, int]]:
    """(lane, time) at which each window of encoded lanes starts."""
    times = rollout.obs["vector"][0, :, 0].astype(int) - rollout.lane * 10_000
    return list(zip(rollout.lane.tolist(), times.tolist(), strict=True))


def assert_intact(rollout: Rollout) -> None:
    """Every field of every row is what was written for its lane and time (memory and version aside)."""
    lane, start = np.array(starts_of(rollout)).T
    expected = window_of(lane, start, len(rollout))
    for name in ("first", "raw_action", "reward", "alive", "behavior"):
        np.testing.assert_array_equal(getattr(rollout, name), getattr(expected, name), name)
    for name, value in expected.obs.items():
        np.testing.assert_array_equal(rollout.obs[name], value, name)
        assert rollout.obs[name].dtype == value.dtype
