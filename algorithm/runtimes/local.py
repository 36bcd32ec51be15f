"""Everything in one process, in turn."""

from __future__ import annotations

from algorithm.runtimes.signals import DeferredSignals
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.divergence import Diverged, DivergenceDetector
from algorithm.training.monitor import Monitor


class LocalRuntime:
    """Act, learn while the simulator goes on, count, until the monitor says that the run is over."""

    def run(self, training: TrainingComponents, actor: Actor, monitor: Monitor, divergence: DivergenceDetector) -> None:
        """Train; whatever ends it but divergence, the monitor saves what there is."""
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
    def _learn(role, training, rollout, monitor, divergence) -> None:
        components = training.get(role)
        components.learner.observe(rollout)
        for batch in components.scheduler(rollout):
            report = components.learner.learn(batch)
            components.scheduler.replay.prioritize(batch.index, report.compute_td_errors)
            monitor.record_update(role, report)
            divergence.count_update()
        training.timer.lap("learning")
