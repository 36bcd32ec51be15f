"""A game of two teams, whose agents have one behavior."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.unity_player.scene import Action, Behavior, News, Sensor, Task

SENSORS = (Sensor("Number", (1,)),)


class Duel(Task):
    """Two teams of two agents; each agent observes a number, which is its best action.

    The team with the smaller total error receives 1, the other team -1. Episodes are truncated after 5 ticks. With
    `late`, the agents of the second team appear at that tick.
    """

    teams = ("Duel?team=0", "Duel?team=1")
    behaviors = dict.fromkeys(teams, Behavior(SENSORS, continuous=1))
    agents, limit = 2, 5

    def __init__(self, rng: np.random.Generator, late: int = 0):
        super().__init__(rng)
        self._late = late

    def reset(self) -> dict[str, list[News]]:
        self.tick = 0
        self._draw()
        return self._waiting(0 if self._late else None)

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        error = {
            team: sum(abs(self.number[agent] - act.continuous[0]) for agent, act in actions[team].items())
            for team in self.teams
            if actions.get(team)
        }
        best = min(error, key=lambda team: error[team])
        self.tick += 1
        self._draw()
        if self.tick == self._late:
            return self._waiting(None)
        truncated = self.tick % self.limit == 0
        return {team: self._news(team, 1.0 if team == best else -1.0, truncated) for team in error}

    def _news(self, team: str, reward: float, truncated: bool) -> list[News]:
        agents = self._agents_of(team)
        ended = (
            [News(agent, self._seen(agent), reward, done=True, interrupted=True) for agent in agents]
            if truncated
            else []
        )
        return ended + [News(agent, self._seen(agent), 0.0 if truncated else reward) for agent in agents]

    def _waiting(self, only: int | None) -> dict[str, list[News]]:
        teams = self.teams if only is None else self.teams[only : only + 1]
        return {team: [News(agent, self._seen(agent)) for agent in self._agents_of(team)] for team in teams}

    def _agents_of(self, team: str) -> range:
        first = self.agents * self.teams.index(team)
        return range(first, first + self.agents)

    def _draw(self) -> None:
        self.number = self.rng.uniform(-1, 1, 2 * self.agents).astype("<f4")

    def _seen(self, agent: int) -> tuple[np.ndarray]:
        return (self.number[agent : agent + 1],)
