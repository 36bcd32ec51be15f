"""Everything in one process, in turn."""

from __future__ import annotations

from algorithm.loop.actor import Actor
from algorithm.loop.monitor import Monitor
from algorithm.loop.parts import Parts


class LocalRuntime:
    """Collect, learn, count, until the monitor says that the run is over."""

    def run(self, parts: Parts, actor: Actor, monitor: Monitor) -> None:
        """Train; whatever ends it, the monitor saves what there is."""
        try:
            over = False
            while not over:
                for role, rollout in actor.collect():
                    self._learn(role, parts, rollout, monitor)
                over = monitor.tick(actor)
        finally:
            monitor.finish()

    @staticmethod
    def _learn(role, parts, rollout, monitor) -> None:
        team = parts.team(role)
        team.learner.observe(rollout)
        for batch in team.feed(rollout):
            report = team.learner.learn(batch)
            team.feed.replay.prioritize(batch.index, report.priority)
            monitor.updated(role, report)
        parts.clock.book("learning")
