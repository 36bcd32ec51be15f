"""Everything in one process, in turn."""

from __future__ import annotations

from algorithm.runtimes.signals import Deferred
from algorithm.training.actor import Actor
from algorithm.training.components import Parts
from algorithm.training.divergence import Diverged, Divergence
from algorithm.training.monitor import Monitor


class LocalRuntime:
    """Act, learn while the simulator goes on, count, until the monitor says that the run is over."""

    def run(self, parts: Parts, actor: Actor, monitor: Monitor, divergence: Divergence) -> None:
        """Train; whatever ends it but divergence, the monitor saves what there is."""
        with Deferred() as signals:
            end = monitor.finish
            try:
                over = False
                while not over:
                    for role, rollout in actor.act():
                        self._learn(role, parts, rollout, monitor, divergence)
                    actor.follow()
                    over = monitor.tick(actor)
                    signals.raise_asked()
                divergence.look()
            except Diverged:
                end = monitor.give_up
                raise
            finally:
                signals.hold()
                end()

    @staticmethod
    def _learn(role, parts, rollout, monitor, divergence) -> None:
        team = parts.team(role)
        team.learner.observe(rollout)
        for batch in team.feed(rollout):
            report = team.learner.learn(batch)
            team.feed.replay.prioritize(batch.index, report.errors)
            monitor.updated(role, report)
            divergence.updated()
        parts.clock.book("learning")
