"""Balance a ball on a plate, as in Unity's example 3DBall."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.unity_player.scene import Action, Behavior, News, Sensor, Task

AGENTS = 12
LIMIT = 200  # decisions in an episode, so that the best return is 20
FRAMES, SECONDS = 5, 0.02  # physics frames of a decision, and of one frame
TURN = np.radians(2.0)  # largest turn of the plate in a frame
STEEPEST = np.radians(25.0)
ROLLING = 5 / 7 * 9.81  # acceleration of a rolling ball on a slope of sine 1
EDGE = 3.0


class BalanceBall(Task):
    """12 plates. Eight numbers: the tilt about two axes, the ball's place and its velocity; two actions turn the plate.

    Each decision has the reward 0.1, a drop -1 and a termination; an episode is truncated after 200 decisions.
    """

    name = "3DBall?team=0"
    behaviors = {name: Behavior((Sensor("VectorSensor_size8", (8,)),), continuous=2)}

    def reset(self) -> dict[str, list[News]]:
        self.tilt, self.place, self.velocity = np.zeros((3, AGENTS, 2))
        self.age = np.zeros(AGENTS, int)
        self._start(np.ones(AGENTS, bool))
        return {self.name: [News(agent, (row,)) for agent, row in enumerate(self._obs())]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        given = actions.get(self.name, {})
        turn = TURN * np.clip([given[agent].continuous for agent in range(AGENTS)], -1, 1)
        for _ in range(FRAMES):
            self.tilt = np.clip(self.tilt + turn, -STEEPEST, STEEPEST)
            self.velocity = self.velocity + ROLLING * SECONDS * np.sin(self.tilt)
            self.place = self.place + SECONDS * self.velocity
        self.age += 1
        dropped = (np.abs(self.place) > EDGE).any(1)
        late = ~dropped & (self.age >= LIMIT)
        over = dropped | late
        last = self._obs()
        ended = [
            News(agent, (last[agent],), -1.0 if dropped[agent] else 0.1, done=True, interrupted=bool(late[agent]))
            for agent in np.flatnonzero(over).tolist()
        ]
        self._start(over)
        waiting = [
            News(agent, (row,), 0.0 if new else 0.1)
            for agent, (row, new) in enumerate(zip(self._obs(), over.tolist(), strict=True))
        ]
        return {self.name: ended + waiting}

    def statistics(self) -> dict[str, float]:
        return {"Ball/Distance": float(np.abs(self.place).max(1).mean())}

    def _start(self, which: np.ndarray) -> None:
        agents = int(which.sum())
        self.tilt[which] = self.rng.uniform(-0.17, 0.17, (agents, 2))
        self.place[which] = self.rng.uniform(-1.5, 1.5, (agents, 2))
        self.velocity[which] = 0
        self.age[which] = 0

    def _obs(self) -> np.ndarray:
        height = np.full((AGENTS, 1), 0.5) - 0.1 * np.abs(self.tilt).sum(1, keepdims=True)
        fall = np.zeros((AGENTS, 1))
        columns = (self.tilt, self.place[:, :1], height, self.place[:, 1:])
        return np.concatenate((*columns, self.velocity[:, :1], fall, self.velocity[:, 1:]), 1).astype("<f4")
