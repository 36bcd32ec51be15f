"""A grid with two signs, observed by a camera, as in Unity's example GridWorld."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tests.unity_player.scene import IMAGE, Action, Behavior, News, Sensor, Task

CELLS = 5
LIMIT = 100
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # stay, up, down, left, right
COLORS = {"agent": (0, 0, 255), "plus": (0, 255, 0), "cross": (255, 0, 0)}


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
            late = not found and self.age[agent] >= LIMIT
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
    for (row, column), color in zip(
        (plus, cross, agent), (COLORS["plus"], COLORS["cross"], COLORS["agent"]), strict=True
    ):
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
