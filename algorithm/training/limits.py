"""The limits of a run, its intervals and its goal."""

from __future__ import annotations

from dataclasses import dataclass

from algorithm.training.progress import Counters


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run, its intervals and its goal; None is never.

    Attributes:
        max_step: env steps at which the run ends.
        max_iter: iterations at which the run ends.
        log_every: env steps between rows of metrics.
        save_every: env steps between checkpoints.
        evaluate_every: env steps between evaluations.
        goal: mean return at which the run ends.
        evaluation_episodes: number of episodes of an evaluation, of each role.
        pause_at: env steps at which training pauses, after an evaluation; the run then continues from its checkpoint.
    """

    max_step: int | None = None
    max_iter: int | None = None
    log_every: int
    save_every: int | None = None
    evaluate_every: int | None = None
    goal: float | None = None
    evaluation_episodes: int
    pause_at: int | None = None

    @property
    def evaluates(self) -> bool:
        """Return whether there are evaluations; then there is one at the end of the run, too."""
        return any(limit is not None for limit in (self.goal, self.evaluate_every, self.pause_at))

    @property
    def last_step(self) -> int | None:
        """Return the env steps at which the run ends or pauses; None without such a limit."""
        limits = [limit for limit in (self.max_step, self.pause_at) if limit is not None]
        return min(limits, default=None)

    def are_reached(self, counters: Counters) -> bool:
        """Return whether the run has made `max_step` env steps or `max_iter` iterations, or pauses."""
        max_step, max_iter = self.last_step, self.max_iter
        return (max_step is not None and counters.env_steps >= max_step) or (
            max_iter is not None and counters.iterations >= max_iter
        )

    def list_reached(self, counters: Counters) -> list[str]:
        """Return a line for each limit, but a pause, that a run which is about to start has reached before."""
        units = {"max_step": "env steps", "max_iter": "iterations"}
        return [
            f"the run has ended already, after {count:,} {units[name]}: base_config.{name} above {limit:,} continues it"
            for name, (count, limit) in self._compare(counters).items()
            if count >= limit
        ]

    def fraction_done(self, counters: Counters) -> float | None:
        """Return the fraction of the run that is done, by `max_step` or `max_iter`, whichever ends it first."""
        return max((count / limit for count, limit in self._compare(counters).values()), default=None)

    def _compare(self, counters: Counters) -> dict[str, tuple[int, int]]:
        """Return the count and the limit of each of `max_step` and `max_iter` that is a limit of the run."""
        limits = {"max_step": (counters.env_steps, self.max_step), "max_iter": (counters.iterations, self.max_iter)}
        return {name: (count, limit) for name, (count, limit) in limits.items() if limit is not None}
