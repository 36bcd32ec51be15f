"""The local runtime: all parts of a run in one process, one after the other."""

from __future__ import annotations

from algorithm.rollout import Rollout
from algorithm.runtimes.signals import DeferredSignals
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.divergence import Diverged, DivergenceDetector
from algorithm.training.monitor import Monitor


class LocalRuntime:
    """A runtime that repeats one tick until the monitor ends the run.

    In a tick, the actor decides and sends the actions, the learners learn while environments in other processes execute
    them, the actor receives the next steps, and the monitor logs, evaluates and saves if due.
    """

    def run(self, training: TrainingComponents, actor: Actor, monitor: Monitor, divergence: DivergenceDetector) -> None:
        """Train until the run is over. The monitor saves a final checkpoint, unless the run diverged.

        Raises:
            Diverged: too many successive updates were skipped.
            KeyboardInterrupt, Terminated: a signal has ended the run, after a complete tick.
        """
        with DeferredSignals() as signals:
            finish = monitor.finish
            try:
                is_over = False
                while not is_over:
                    for role, rollout in actor.act():
                        self._learn(role, training, rollout, monitor, divergence)
                    actor.receive()
                    is_over = monitor.tick(actor)
                    signals.raise_pending()
                divergence.check()
            except Diverged:
                finish = monitor.abort
                raise
            finally:
                signals.defer_all()
                finish()

    @staticmethod
    def _learn(
        role: str, training: TrainingComponents, rollout: Rollout, monitor: Monitor, divergence: DivergenceDetector
    ) -> None:
        """Make the updates that follow one rollout."""
        components = training.get(role)
        learner, scheduler = components.learner, components.scheduler
        learner.observe(rollout)
        for batch in scheduler(rollout):
            report = learner.compute_gradients(batch)
            learner.apply_gradients()
            scheduler.replay.prioritize(batch.index, report.compute_td_errors)
            monitor.record_update(role, report)
            divergence.count_update()
        training.timer.lap("learning")
