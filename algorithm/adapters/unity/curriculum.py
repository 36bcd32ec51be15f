"""What a scene is told: environment parameters that are numbers, drawn there, or follow the lessons of a curriculum."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Uniform:
    """A number that the scene draws between two others."""

    low: float
    high: float


@dataclass(frozen=True)
class Gaussian:
    """A number that the scene draws from a normal distribution."""

    mean: float
    std: float


@dataclass(frozen=True)
class MultiRange:
    """A number that the scene draws from one of several intervals."""

    intervals: tuple[tuple[float, float], ...]


Value = float | Uniform | Gaussian | MultiRange
Measure = Literal["reward", "progress"]


@dataclass(frozen=True)
class Lesson:
    """A value until `role` has ended `episodes` episodes in it, and what is measured reaches `threshold`.

    That is the mean return of the last so many of them, or the progress of training. It is looked at when an episode
    ends. `role` None is the only one there is; `threshold` None is the last lesson, which stays.
    """

    name: str
    value: Value
    role: str | None = None
    episodes: int = 1
    threshold: float | None = None
    measure: Measure = "reward"


class Curriculum:
    """The lessons of one parameter, and at which of them it is."""

    def __init__(self, name: str, lessons: Sequence[Lesson]):
        self.name, self.lessons = name, tuple(lessons)
        self._start_lesson(0)

    @property
    def lesson(self) -> Lesson:
        """The one that is taught."""
        return self.lessons[self.index]

    def record_episode(self, role: str, episode_return: float, progress: Callable[[], float]) -> None:
        """Record the end of an episode, which may end the lesson. Only lessons by progress call `progress`."""
        if self.lesson.threshold is None or self.lesson.role not in (None, role):
            return
        self.returns.append(episode_return)
        if len(self.returns) < self.lesson.episodes:
            return
        by_progress = self.lesson.measure == "progress"
        measured = progress() if by_progress else sum(self.returns) / len(self.returns)
        if measured >= self.lesson.threshold:
            self._start_lesson(self.index + 1)
            reason = f"{measured:.0%} of training" if by_progress else f"a mean return of {measured:.3g}"
            LOG.warning(f"{self.name}: lesson {self.lesson.name} begins, after {reason}")

    def state(self) -> dict[str, Any]:
        """At which lesson it is, and the returns in it."""
        return {"lesson": self.index, "returns": list(self.returns)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._start_lesson(min(int(state["lesson"]), len(self.lessons) - 1))
        self.returns.extend(state["returns"])

    def _start_lesson(self, index: int) -> None:
        self.index = index
        self.returns: deque[float] = deque(maxlen=self.lesson.episodes)


class SceneParameters:
    """The environment parameters of a run; those that train in it tell it of their episodes.

    `progress` returns which share of the training is over; only lessons by progress need it.
    """

    def __init__(self, parameters: Mapping[str, Value | Sequence[Lesson]], progress: Callable[[], float] = lambda: 0.0):
        self._progress = progress
        self._fixed: dict[str, Value] = {}
        self.curricula: dict[str, Curriculum] = {}
        for name, value in parameters.items():
            if isinstance(value, Sequence):
                self.curricula[name] = Curriculum(name, value)
            else:
                self._fixed[name] = value

    @property
    def current(self) -> dict[str, Value]:
        """What each parameter is now."""
        return {**self._fixed, **{name: curriculum.lesson.value for name, curriculum in self.curricula.items()}}

    def record_episode(self, role: str, episode_return: float) -> None:
        """A training episode ended."""
        for curriculum in self.curricula.values():
            curriculum.record_episode(role, episode_return, self._progress)

    def state(self) -> dict[str, Any]:
        """How far the lessons are, as values that JSON holds."""
        return {name: curriculum.state() for name, curriculum in self.curricula.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, for the parameters that still have lessons."""
        for name, curriculum in self.curricula.items():
            if name in state:
                curriculum.restore(state[name])


def find_changes(old: Mapping[str, Value], new: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """What a scene that knows `old` has yet to be told."""
    for name, value in new.items():
        if name not in old or old[name] != value:
            yield name, value
