"""When a run does what, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from algorithm.training.history import Counters


@dataclass(frozen=True)
class Limits:
    """When to do what. Intervals and `max_step` are env steps, None is never."""

    max_step: int | None
    max_iter: int | None
    log_every: int
    save_every: int | None
    evaluate_every: int | None
    goal: float | None

    @property
    def evaluates(self) -> bool:
        """Whether there is any evaluation; then there is also one when the run ends."""
        return self.goal is not None or self.evaluate_every is not None

    def fraction_done(self, counters: Counters) -> float | None:
        """Share of the way to the nearer of `max_step` and `max_iter`; 1 or more ends a run, None never does."""
        limits = [(counters.env_steps, self.max_step), (counters.iterations, self.max_iter)]
        return max((count / limit for count, limit in limits if limit is not None), default=None)
