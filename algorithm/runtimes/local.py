"""The local runtime: all parts of a run in one process, one after the other."""

from __future__ import annotations

from algorithm.agents.agent import LossReport
from algorithm.rollout import Rollout
from algorithm.runtimes.signals import DeferredSignals
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.divergence import Diverged, DivergenceDetector
from algorithm.training.monitor import Monitor
from algorithm.training.updates import learn_from


class LocalRuntime:
    """A runtime that repeats one tick until the monitor ends the run.

    A tick: agents without a replay learn from the rollouts that are complete; the actor decides and sends the actions;
    agents with a replay learn while environments in other processes execute them; the actor receives the next steps;
    the monitor logs, evaluates and saves if due. Thus an agent without a replay decides the first row of a rollout with
    the parameters that it learned from the previous one. An agent with a replay decides this row before it learns; its
    rollouts record the policy that acted (`behavior`).
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
                    overlapping = []
                    for role, rollout in actor.complete_rollouts():
                        if training.get(role).agent.schedule.uses_replay:
                            overlapping.append((role, rollout))
                        else:
                            self._learn(role, training, rollout, monitor, divergence)
                    actor.act()
                    for role, rollout in overlapping:
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

        def record_update(report: LossReport) -> None:
            monitor.record_update(role, report)
            divergence.count_update()

        learn_from(training.get(role), rollout, record_update)
        training.timer.lap("learning")
