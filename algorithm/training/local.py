"""The local runtime: all parts of a run in one process, one after the other."""

from __future__ import annotations

from algorithm.agents.agent import LossResult
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.monitor import Monitor
from algorithm.training.run_end import DivergenceDetector, finish_at_end
from algorithm.training.updates import run_tick


class LocalRuntime:
    """A runtime that repeats one tick (`run_tick`) until the monitor, which then does what is due, ends the run."""

    def run(self, training: TrainingComponents, actor: Actor, monitor: Monitor, divergence: DivergenceDetector) -> None:
        """Train until the run is over. The monitor saves a final checkpoint, unless the run diverged.

        Raises:
            Diverged: too many successive updates were skipped.
            KeyboardInterrupt, Terminated: a signal has ended the run, after a complete tick.
        """

        def record_update(role: str, report: LossResult) -> None:
            monitor.record_update(role, report)
            divergence.count_update()

        with finish_at_end(monitor) as signals:
            is_over = monitor.do_due()  # a run that was stopped while its last weights were evaluated has ended
            while not is_over:
                run_tick(training, actor, record_update)
                is_over = monitor.tick(actor)
                signals.raise_pending()
            divergence.check()
