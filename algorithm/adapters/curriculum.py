"""Environment parameters: numbers, distributions from which an environment draws numbers, and curricula of lessons."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from algorithm.annotations import Range

LOG = logging.getLogger(__name__)
Interval = Annotated[Sequence[float], Field(min_length=2, max_length=2)]


# The distributions have the names and the parameters of ML-Agents.
@dataclass(frozen=True)
class Uniform:
    """A uniform distribution over [min_value, max_value]."""

    min_value: float
    max_value: float


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution."""

    mean: float
    st_dev: Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class MultiRange:
    """A uniform distribution over one of several intervals, of which one is chosen first."""

    intervals: Annotated[Sequence[Interval], Field(min_length=1)]


Value = float | Uniform | Gaussian | MultiRange
Measure = Literal["reward", "progress", "elo"]
REASONS = {  # of the next lesson, by the measure of the last one
    "reward": "a mean return of {:.3g}",
    "progress": "{:.0%} of training",
    "elo": "a rating of {:.0f}",
}


@dataclass(frozen=True)
class Lesson:
    """One value of a parameter, and the criterion that ends it.

    The criterion is checked whenever an episode of `role` ends, once the lesson has had `episodes` of them: with the
    measure "reward" the mean return of the last `episodes` episodes must reach `threshold`, with "progress" the
    fraction of training that is over, with "elo" the rating of the role's agent in self-play. `role` None means every
    role. `threshold` None marks the last lesson, which does not end.
    """

    name: str
    value: Value
    role: str | None = None
    episodes: int = 1
    threshold: float | None = None
    measure: Measure = "reward"


class Curriculum:
    """The lessons of one parameter and the index of the current one."""

    def __init__(self, name: str, lessons: Sequence[Lesson]):
        self.name, self.lessons = name, tuple(lessons)
        self._start_lesson(0)

    @property
    def lesson(self) -> Lesson:
        """Return the current lesson."""
        return self.lessons[self.index]

    def record_episode(self, role: str, episode_return: float, measures: Mapping[str, Callable[[str], float]]) -> None:
        """Record the end of an episode of a role, which may start the next lesson.

        `measures` are functions of the role, by the measure; the mean return is not among them.
        """
        if self.lesson.threshold is None or self.lesson.role not in (None, role):
            return
        self.returns.append(episode_return)
        if len(self.returns) < self.lesson.episodes:
            return
        measure = self.lesson.measure
        measured = measures[measure](role) if measure in measures else sum(self.returns) / len(self.returns)
        if measured >= self.lesson.threshold:
            self._start_lesson(self.index + 1)
            reason = REASONS[measure].format(measured)
            LOG.warning(f"{self.name}: lesson {self.lesson.name} begins, after {reason}")

    def state(self) -> dict[str, Any]:
        """Return the index of the current lesson and the returns recorded in it, as JSON values."""
        return {"lesson": self.index, "returns": list(self.returns)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; an index beyond the last lesson becomes the last one."""
        self._start_lesson(min(int(state["lesson"]), len(self.lessons) - 1))
        self.returns.extend(state["returns"])

    def _start_lesson(self, index: int) -> None:
        self.index = index
        self.returns: deque[float] = deque(maxlen=self.lesson.episodes)


class EnvironmentParameters:
    """The environment parameters of a run, shared by its training adapter and its evaluation adapter.

    The training adapter records its episodes here; both adapters read `current`. A checkpoint stores `state`.
    """

    def __init__(
        self,
        parameters: Mapping[str, Value | Sequence[Lesson]],
        get_progress: Callable[[], float] = lambda: 0.0,
        get_rating: Callable[[str], float] = lambda role: 0.0,
    ):
        """Create the parameters, by name, each at its first lesson.

        `get_progress` returns the fraction of training that is over, `get_rating` the rating of a role's agent; they
        are called for lessons by these measures only.
        """
        self._parameters = parameters
        self._measures = {"progress": lambda role: get_progress(), "elo": get_rating}
        self.curricula = {
            name: Curriculum(name, value) for name, value in parameters.items() if isinstance(value, Sequence)
        }

    @property
    def current(self) -> dict[str, Value]:
        """Return the current value of each parameter."""
        fixed: dict[str, Any] = {name: value for name, value in self._parameters.items() if name not in self.curricula}
        return {**fixed, **{name: curriculum.lesson.value for name, curriculum in self.curricula.items()}}

    def record_episode(self, role: str, episode_return: float) -> None:
        """Record the end of a training episode, which may start the next lesson of any parameter."""
        for curriculum in self.curricula.values():
            curriculum.record_episode(role, episode_return, self._measures)

    def state(self) -> dict[str, Any]:
        """Return the state of every curriculum, as JSON values."""
        return {name: curriculum.state() for name, curriculum in self.curricula.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, for the parameters that still have lessons."""
        for name, curriculum in self.curricula.items():
            if name in state:
                curriculum.restore(state[name])
