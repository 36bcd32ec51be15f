"""The end of a run, which is the same in every runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from algorithm.errors import LearnerUnreachable
from algorithm.training.divergence import Diverged
from algorithm.training.monitor import Monitor
from algorithm.training.signals import DeferredSignals


@contextmanager
def finish_at_end(monitor: Monitor, settle: Callable[[], None] = lambda: None) -> Iterator[DeferredSignals]:
    """Yield the deferred signals. When the block ends, save a final checkpoint.

    There is none if the run diverged, or if another learner is lost, whose experience would be missing.

    Args:
        monitor: the monitor of the run.
        settle: completes the ticks that have begun, before the checkpoint is saved.

    Raises:
        KeyboardInterrupt, Terminated: a signal was received in the last tick.
    """
    with DeferredSignals() as signals:
        finish = monitor.finish
        try:
            yield signals
        except (Diverged, LearnerUnreachable):
            finish = monitor.reporter.close  # logs the last metrics
            raise
        finally:
            signals.defer_all()
            settle()
            finish()
