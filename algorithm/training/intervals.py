"""Intervals of a run: actions that are due every so many env steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Intervals:
    """Actions with the interval of each in env steps, which end at multiples of it.

    Args:
        actions: interval and action, in the order in which they are run; without an interval it is never run.
        env_steps: env steps of the run; the intervals that end there have been run.

    Attributes:
        next_due: the env steps at which the next interval ends.
    """

    def __init__(self, actions: Sequence[tuple[int | None, Callable[[], object]]], env_steps: int):
        self._actions = [(every, action) for every, action in actions if every]
        self._set_last(env_steps)

    def run(self, env_steps: int) -> None:
        """Run the actions whose intervals have ended since the last call, each once."""
        if env_steps < self.next_due:
            return
        for every, action in self._actions:
            if env_steps // every > self._last // every:
                action()
        self._set_last(env_steps)

    def _set_last(self, env_steps: int) -> None:
        self._last = env_steps
        self.next_due = min((env_steps // every + 1) * every for every, _ in self._actions)
