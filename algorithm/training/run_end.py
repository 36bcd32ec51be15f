"""The detection of divergence, which ends a run."""

from __future__ import annotations

import logging

from algorithm.training.components import TrainingComponents

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 100  # updates between checks; a check waits for the device


class Diverged(RuntimeError):
    """Too many successive updates had a loss or gradient that is NaN or infinite."""


class DivergenceDetector:
    """A detector that logs skipped updates, and ends a run if `limit` successive updates of a role are skipped."""

    def __init__(self, training: TrainingComponents, limit: int):
        self.training, self.limit = training, limit
        self._interval = min(CHECK_INTERVAL, limit)
        self._updates = 0
        self._logged_skips = {role: components.learner.skipped_updates for role, components in training.by_role.items()}

    def count_update(self) -> None:
        """Count an update, and check the learners at intervals. Raises Diverged."""
        self._updates += 1
        if self._updates % self._interval == 0:
            self.check()

    def check(self) -> None:
        """Check the learners of all roles.

        Raises:
            Diverged: the last `limit` updates of a role were skipped.
        """
        for role, components in self.training.by_role.items():
            learner = components.learner
            skipped = learner.skipped_updates
            if skipped > self._logged_skips.get(role, 0):
                LOG.warning(
                    f"{skipped - self._logged_skips.get(role, 0)} updates of role {role!r} were skipped up to update "
                    f"{learner.updates:,}: their loss or gradient is NaN or infinite"
                )
                self._logged_skips[role] = skipped
            if learner.consecutive_skips >= self.limit:
                raise Diverged(
                    f"the last {learner.consecutive_skips} updates of role {role!r} had a NaN or infinite loss or "
                    f"gradient (base_config.max_nonfinite_updates is {self.limit}); the last checkpoint is unchanged; "
                    "try a smaller learning_rate, or a reward_scale or reward_clip for large rewards"
                )
