"""Tasks: balancing a ball and walking on a grid, as in Unity's examples 3DBall and GridWorld, and small tasks.

The small tasks have hybrid actions, agents that decide at different times, two behaviors, or two teams of one behavior.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tests.unity_player.scene import IMAGE, VARIABLE_LENGTH, Action, Behavior, News, Sensor, Task

# Balancing a ball.
PLATES = 12
BALL_LIMIT = 200  # decisions in an episode, so that the best return is 20
FRAMES, SECONDS = 5, 0.02  # physics frames of a decision, and of one frame
TURN = np.radians(2.0)  # largest turn of the plate in a frame
STEEPEST = np.radians(25.0)
ROLLING = 5 / 7 * 9.81  # acceleration of a rolling ball on a slope of sine 1
EDGE = 3.0
# The grid.
CELLS = 5
GRID_LIMIT = 100
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # stay, up, down, left, right
COLORS = (0, 255, 0), (255, 0, 0), (0, 0, 255)  # plus, cross and agent


class BalanceBall(Task):
    """12 plates. Eight numbers: the tilt about two axes, the ball's place and its velocity; two actions turn the plate.

    Each decision has the reward 0.1, a drop -1 and a termination; an episode is truncated after 200 decisions.
    """

    name = "3DBall?team=0"
    behaviors = {name: Behavior((Sensor("VectorSensor_size8", (8,)),), continuous=2)}

    def reset(self) -> dict[str, list[News]]:
        self.tilt, self.place, self.velocity = np.zeros((3, PLATES, 2))
        self.age = np.zeros(PLATES, int)
        self._start(np.ones(PLATES, bool))
        return {self.name: [News(agent, (row,)) for agent, row in enumerate(self._obs())]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        given = actions.get(self.name, {})
        turn = TURN * np.clip([given[agent].continuous for agent in range(PLATES)], -1, 1)
        for _ in range(FRAMES):
            self.tilt = np.clip(self.tilt + turn, -STEEPEST, STEEPEST)
            self.velocity = self.velocity + ROLLING * SECONDS * np.sin(self.tilt)
            self.place = self.place + SECONDS * self.velocity
        self.age += 1
        dropped = (np.abs(self.place) > EDGE).any(1)
        late = ~dropped & (self.age >= BALL_LIMIT)
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
        height = np.full((PLATES, 1), 0.5) - 0.1 * np.abs(self.tilt).sum(1, keepdims=True)
        fall = np.zeros((PLATES, 1))
        columns = (self.tilt, self.place[:, :1], height, self.place[:, 1:])
        return np.concatenate((*columns, self.velocity[:, :1], fall, self.velocity[:, 1:]), 1).astype("<f4")


class Grid(Task):
    """A camera, a goal signal that names one of two signs, five moves of which moves into a wall are masked.

    The named sign earns 1, the other one costs 1, both end the episode; every other move costs 0.01.
    `size` is the camera's, in pixels; `layout` is hwc (packages up to 2.x) or chw.
    """

    name = "GridWorld?team=0"

    def __init__(self, rng: np.random.Generator, agents: int, size: int, layout: str, png: bool):
        super().__init__(rng)
        self._agents = agents
        shape = (size, size, 3) if layout == "hwc" else (3, size, size)
        camera = Sensor("CameraSensor", shape, IMAGE[layout], png=png)
        self.behaviors = {self.name: Behavior((camera, Sensor("GoalSensor", (2,), goal=True)), branches=(5,))}
        self._draw = lru_cache(None)(lambda *cells: encode(picture(size, *cells), layout, png))

    def reset(self) -> dict[str, list[News]]:
        self.cells = np.zeros((self._agents, 3, 2), int)  # agent, plus, cross
        self.goal = np.zeros(self._agents, int)
        self.age = np.zeros(self._agents, int)
        for agent in range(self._agents):
            self._start(agent)
        return {self.name: [self._news(agent) for agent in range(self._agents)]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        news = []
        for agent, action in actions.get(self.name, {}).items():
            self.cells[agent, 0] = np.clip(self.cells[agent, 0] + MOVES[action.discrete[0]], 0, CELLS - 1)
            self.age[agent] += 1
            found = [sign for sign in (0, 1) if (self.cells[agent, 0] == self.cells[agent, 1 + sign]).all()]
            reward = (1.0 if found[0] == self.goal[agent] else -1.0) if found else -0.01
            late = not found and self.age[agent] >= GRID_LIMIT
            if found or late:
                news.append(self._news(agent, reward, done=True, interrupted=bool(late)))
                self._start(agent)
                news.append(self._news(agent))
            else:
                news.append(self._news(agent, reward))
        return {self.name: news}

    def _start(self, agent: int) -> None:
        places = self.rng.choice(CELLS * CELLS, 3, replace=False)
        self.cells[agent] = np.stack(np.divmod(places, CELLS), 1)
        self.goal[agent] = self.rng.integers(2)
        self.age[agent] = 0

    def _news(self, agent: int, reward: float = 0.0, done: bool = False, interrupted: bool = False) -> News:
        cells = tuple(map(tuple, self.cells[agent].tolist()))
        goal = np.eye(2, dtype="<f4")[self.goal[agent]]
        row, column = cells[0]
        mask = [not (0 <= row + down < CELLS and 0 <= column + right < CELLS) for down, right in MOVES]
        return News(agent, (self._draw(*cells), goal), reward, done, interrupted, mask)


def picture(size: int, agent: tuple, plus: tuple, cross: tuple) -> np.ndarray:
    """Return the image of the camera, [size, size, 3] uint8."""
    pixels = np.full((size, size, 3), 230, np.uint8)
    edges = np.linspace(0, size, CELLS + 1).astype(int)
    for (row, column), color in zip((plus, cross, agent), COLORS, strict=True):
        pixels[edges[row] : edges[row + 1], edges[column] : edges[column + 1]] = color
    return pixels


def encode(pixels: np.ndarray, layout: str, png: bool) -> np.ndarray | bytes:
    """Return an image as Unity sends it: a PNG, or numbers from 0 to 1 in the layout of its package."""
    if not png:
        values = (pixels / 255).astype("<f4")
        return values if layout == "hwc" else np.ascontiguousarray(values.transpose(2, 0, 1))
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


class Hybrid(Task):
    """Six agents observe a point and two numbers; the best actions repeat them, in continuous and discrete actions.

    The reward of a decision is 1 - |x - x'| - |y - y'|, at least -1, plus 0.5 for each branch that is right. An
    episode is 20 decisions and then interrupted. A variable-length sensor shows the point as up to three equal rows.
    """

    name = "Hybrid?team=0"
    agents, limit, branches = 6, 20, (2, 3)
    behaviors = {
        name: Behavior(
            (Sensor("Buffer", (3, 2), VARIABLE_LENGTH), Sensor("Vector", (7,))), continuous=2, branches=branches
        )
    }

    def reset(self) -> dict[str, list[News]]:
        self.age = 0
        self._draw()
        return {self.name: [self._news(agent) for agent in range(self.agents)]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        reward = [self._reward(agent, actions[self.name][agent]) for agent in range(self.agents)]
        self.age += 1
        self._draw()
        if self.age % self.limit:
            return {self.name: [self._news(agent, reward[agent]) for agent in range(self.agents)]}
        ended = [self._news(agent, reward[agent], True) for agent in range(self.agents)]
        return {self.name: ended + [self._news(agent) for agent in range(self.agents)]}

    def _draw(self) -> None:
        self.point = self.rng.uniform(-1, 1, (self.agents, 2)).astype("<f4")
        self.right = self.rng.integers(0, self.branches, (self.agents, 2))

    def _reward(self, agent: int, action: Action) -> float:
        near = max(-1.0, 1.0 - float(np.abs(self.point[agent] - action.continuous).sum()))
        return near + 0.5 * sum(int(a == b) for a, b in zip(self.right[agent], action.discrete, strict=True))

    def _news(self, agent: int, reward: float = 0.0, truncated: bool = False) -> News:
        rows = np.zeros((3, 2), "<f4")
        rows[: 1 + agent % 3] = self.point[agent]
        one_hot = [np.eye(count)[right] for count, right in zip(self.branches, self.right[agent], strict=True)]
        vector = np.concatenate((self.point[agent], *one_hot)).astype("<f4")
        return News(agent, (rows, vector), reward, truncated, truncated)


# Events of agents at each tick after the reset; "decide" requests a decision, "again" starts a new episode.
STAGGERED: tuple[tuple[tuple[int, str], ...], ...] = (
    ((1, "decide"),),
    ((1, "decide"), (2, "decide")),
    (),
    ((2, "decide"), (1, "truncated"), (1, "again"), (3, "decide")),
    ((3, "terminated"),),
    ((2, "terminated"), (1, "decide")),
    ((2, "again"),),
    ((1, "terminated"), (1, "again"), (2, "decide"), (4, "decide")),
    ((4, "truncated"),),
    ((1, "decide"), (2, "decide")),
)


class Staggered(Task):
    """Agents that request decisions, terminate, disappear and appear at different ticks; the table above is repeated.

    An agent observes its id and the tick, counted from the reset. Its reward is a tenth of the ticks since its last
    decision. Its discrete action with two values has no effect. At the reset the agents 1 and 2 await a decision.
    """

    name = "Staggered?team=0"
    behaviors = {name: Behavior((Sensor("Vector", (2,)),), branches=(2,))}

    def reset(self) -> dict[str, list[News]]:
        self.tick = 0
        self.last = {1: 0, 2: 0}  # tick of each agent's last decision
        return {self.name: [self._news(1), self._news(2)]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        events = STAGGERED[self.tick % len(STAGGERED)]
        self.tick += 1
        return {self.name: [self._event(agent, what) for agent, what in events]}

    def _event(self, agent: int, what: str) -> News:
        done = what in ("terminated", "truncated")
        news = self._news(agent, done=done, interrupted=what == "truncated")
        if done:
            del self.last[agent]
        else:
            self.last[agent] = self.tick
        return news

    def _news(self, agent: int, done: bool = False, interrupted: bool = False) -> News:
        reward = (self.tick - self.last.get(agent, self.tick)) / 10
        return News(agent, (np.array([agent, self.tick], "<f4"),), reward, done, interrupted)


class Arrivals(Task):
    """Five agents with staggered decisions, agent k at every third tick from tick k % 3 on; two more from tick 30 on.

    An agent observes its id and the tick, counted from the reset. Its reward is 1 if its action is the parity of its
    id. Episodes of the five agents are interrupted after four decisions and start again at once. The other two agents
    request a decision at every tick and terminate after ten decisions; two new ones appear at every 30th tick.
    """

    name = "Arrivals?team=0"
    behaviors = {name: Behavior((Sensor("Vector", (2,)),), branches=(2,))}
    agents, limit, visitors, lifetime, spawn = 5, 4, 2, 10, 30

    def reset(self) -> dict[str, list[News]]:
        self.tick = 0
        self.decisions: dict[int, int] = {}  # in each agent's episode
        self.right: dict[int, float] = {}  # reward of each agent's last decision
        return {self.name: self._news()}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        self.tick += 1
        for agent, action in actions.get(self.name, {}).items():
            self.right[agent] = float(action.discrete[0] == agent % 2)
        return {self.name: self._news()}

    def _news(self) -> list[News]:
        news = [part for agent in range(self.tick % 3, self.agents, 3) for part in self._turn(agent)]
        visit, age = divmod(self.tick, self.spawn)
        if visit and age <= self.lifetime:
            for agent in range(100 * visit, 100 * visit + self.visitors):
                done = age == self.lifetime
                news.append(News(agent, self._obs(agent), self.right.get(agent, 0.0), done))
        return news

    def _turn(self, agent: int) -> list[News]:
        """Return the decision of one of the five agents, after the end of its last episode if it has ended."""
        decisions = self.decisions.get(agent, 0)
        if decisions == self.limit:
            self.decisions[agent] = 1
            return [News(agent, self._obs(agent), self.right[agent], True, True), News(agent, self._obs(agent))]
        self.decisions[agent] = decisions + 1
        return [News(agent, self._obs(agent), self.right.get(agent, 0.0))]

    def _obs(self, agent: int) -> tuple[np.ndarray]:
        return (np.array([agent, self.tick], "<f4"),)


class TwoBehaviors(Task):
    """Two behaviors: Walkers with a continuous action, and Watchers with a discrete action from the tenth tick on.

    A walker observes a number and receives 1 - |number - action|. A watcher observes one of three signs and receives 1
    for the action with this number. If all watchers are right, each receives a group reward of 0.5. Episodes are
    truncated after 10 ticks.
    """

    walkers, watchers = "Walker?team=0", "Watcher?team=1"
    behaviors = {
        walkers: Behavior((Sensor("Number", (1,)),), continuous=1),
        watchers: Behavior((Sensor("Sign", (3,)),), branches=(3,)),
    }
    agents, limit, late = 3, 10, 10

    def reset(self) -> dict[str, list[News]]:
        self.tick = 0
        self._draw()
        return self._waiting()

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        walked, watched = actions.get(self.walkers, {}), actions.get(self.watchers, {})
        near = {agent: 1 - abs(float(self.number[agent]) - act.continuous[0]) for agent, act in walked.items()}
        right = {agent: act.discrete[0] == self.sign[agent - 10] for agent, act in watched.items()}
        shared = 0.5 if right and all(right.values()) else 0.0
        self.tick += 1
        self._draw()
        waiting, over = self._waiting(), self.tick % self.limit == 0
        news = {self.walkers: [part for next_ in waiting[self.walkers] for part in self._turn(next_, near, over)]}
        if self.tick == self.late:
            return {**news, self.watchers: waiting[self.watchers]}
        if self.watchers in waiting:
            watching = [part for next_ in waiting[self.watchers] for part in self._turn(next_, right, over, shared)]
            news[self.watchers] = watching
        return news

    def _turn(self, waiting: News, reward: Mapping[int, float], over: bool, shared: float = 0.0) -> list[News]:
        """Return the decision of an agent, after the end of its last episode if it has ended."""
        rewarded = replace(waiting, reward=float(reward[waiting.agent]), group_reward=shared)
        return [replace(rewarded, done=True, interrupted=True), waiting] if over else [rewarded]

    def _waiting(self) -> dict[str, list[News]]:
        waiting = {self.walkers: [News(agent, (self.number[agent : agent + 1],)) for agent in range(self.agents)]}
        if self.tick >= self.late:
            signs = np.eye(3, dtype="<f4")[self.sign]
            waiting[self.watchers] = [News(10 + index, (sign,), group=1) for index, sign in enumerate(signs)]
        return waiting

    def _draw(self) -> None:
        self.number = self.rng.uniform(-1, 1, self.agents).astype("<f4")
        self.sign = self.rng.integers(0, 3, self.agents)


class Escape(Task):
    """A group of three agents in a room with a gate, of which one, next to the lever, has to stay behind.

    An agent observes whether the gate is open, whether it is next to the lever, and the share of ticks that are over.
    Its actions are wait, pull and leave. An agent that pulls, or leaves through the open gate, terminates; each that
    leaves earns a group reward of 0.5, each tick 0.01. After 10 ticks, or without an agent, the episode ends.
    """

    name = "Escape?team=0"
    behaviors = {name: Behavior((Sensor("Room", (3,)),), branches=(3,))}
    agents, limit = 3, 10

    def reset(self) -> dict[str, list[News]]:
        self._start()
        return {self.name: [self._news(agent) for agent in self.present]}

    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        chosen = {agent: action.discrete[0] for agent, action in actions[self.name].items()}
        self.tick += 1
        safe = [agent for agent, action in chosen.items() if self.is_open and action == 2]
        removed = {*safe, *(agent for agent, action in chosen.items() if action == 1)}
        self.is_open |= chosen.get(self.near) == 1
        self.present = [agent for agent in self.present if agent not in removed]
        over, reward = self.tick == self.limit or not self.present, 0.01 + 0.5 * len(safe)
        news = []
        for agent in chosen:
            done = agent in removed or over
            news.append(
                replace(self._news(agent), done=done, interrupted=done and agent not in removed, group_reward=reward)
            )
        if over:
            self._start()
            news += [self._news(agent) for agent in self.present]
        return {self.name: news}

    def _start(self) -> None:
        self.tick, self.is_open, self.present = 0, False, list(range(self.agents))
        self.near = int(self.rng.integers(self.agents))

    def _news(self, agent: int) -> News:
        observed = np.array([self.is_open, agent == self.near, self.tick / self.limit], "<f4")
        return News(agent, (observed,), group=1)


class Duel(Task):
    """Two teams of two agents; each agent observes a number, which is its best action.

    The team with the smaller total error receives 1, the other team -1. Episodes are truncated after 5 ticks. With
    `late`, the agents of the second team appear at that tick.
    """

    teams = ("Duel?team=0", "Duel?team=1")
    behaviors = dict.fromkeys(teams, Behavior((Sensor("Number", (1,)),), continuous=1))
    agents, limit = 2, 5

    def __init__(self, rng: np.random.Generator, late: int = 0):
        super().__init__(rng)
        self._late = late

    def reset(self) -> dict[str, list[News]]:
        self.tick = 0
        self._draw()
        return {team: self._news(team) for team in self.teams[: 1 if self._late else 2]}

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
            return {team: self._news(team) for team in self.teams}
        truncated = self.tick % self.limit == 0
        return {team: self._news(team, 1.0 if team == best else -1.0, truncated) for team in error}

    def _news(self, team: str, reward: float = 0.0, truncated: bool = False) -> list[News]:
        first = self.agents * self.teams.index(team)
        shown = {agent: (self.number[agent : agent + 1],) for agent in range(first, first + self.agents)}
        ended = [News(agent, obs, reward, done=True, interrupted=True) for agent, obs in shown.items() if truncated]
        return ended + [News(agent, obs, 0.0 if truncated else reward) for agent, obs in shown.items()]

    def _draw(self) -> None:
        self.number = self.rng.uniform(-1, 1, 2 * self.agents).astype("<f4")
