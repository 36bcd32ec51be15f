"""Learning that no longer leads anywhere."""

from __future__ import annotations

import logging

from algorithm.training.components import Parts

LOG = logging.getLogger(__name__)
EVERY = 100  # updates between looks: a look waits for the device


class Diverged(RuntimeError):
    """Too many updates in a row had a loss or a gradient that is NaN or infinite."""


class Divergence:
    """Tells of skipped updates, and ends a run in which `limit` of one role follow each other."""

    def __init__(self, parts: Parts, limit: int):
        self.parts, self.limit = parts, limit
        self._every = min(EVERY, limit)
        self._updates = 0
        self._told = {role: team.learner.skipped for role, team in parts.teams.items()}

    def updated(self) -> None:
        """An update was made. Raises Diverged."""
        self._updates += 1
        if self._updates % self._every == 0:
            self.look()

    def look(self) -> None:
        """Look at the learners of all roles now. Raises Diverged."""
        for role, team in self.parts.teams.items():
            learner = team.learner
            skipped = learner.skipped
            if skipped > self._told.get(role, 0):
                LOG.warning(
                    f"{skipped - self._told.get(role, 0)} updates of role {role!r} were skipped up to update "
                    f"{learner.updates:,}: their loss or gradient is NaN or infinite"
                )
                self._told[role] = skipped
            if learner.skipped_in_a_row >= self.limit:
                raise Diverged(
                    f"the last {learner.skipped_in_a_row} updates of role {role!r} had a NaN or infinite loss or "
                    f"gradient (base_config.max_nonfinite_updates is {self.limit}); the last checkpoint is as it was; "
                    "try a "
                    "smaller learning_rate, or a reward_scale or reward_clip for large rewards"
                )
