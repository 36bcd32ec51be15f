"""Numbers that are none and masks that allow nothing, kept from being stored and from being acted on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK
from algorithm.training.episode_returns import EpisodeReturns

LOG = logging.getLogger(__name__)
MAX_LOST_TICKS = 30_000  # ticks that a lane may be lost before the run ends


class StepSanitizer:
    """Finds NaN and infinity in what one role's lanes are shown, and masks that leave one of `branches` no action.

    A lane with such an observation or reward is lost until its next `first`: its episode is cut as if its final
    observation were not known, and does not count. `episode_returns` are those of the role's running episodes.
    """

    def __init__(self, role: str, episode_returns: EpisodeReturns, branches: Sequence[int]):
        self.role, self.episode_returns = role, episode_returns
        self.branch_starts = np.cumsum([0, *branches])[:-1]  # where each branch begins in a mask
        self.lost = np.zeros(len(episode_returns.lengths), bool)
        self.lost_ticks = np.zeros(len(episode_returns.lengths), np.int64)  # ticks since each lane could be stored
        self._any_lost = False

    def grow(self, lanes: int) -> None:
        """Add lanes that are not lost, up to `lanes` lanes."""
        padding = (0, lanes - len(self.lost))
        self.lost, self.lost_ticks = np.pad(self.lost, padding), np.pad(self.lost_ticks, padding)

    def state(self) -> dict[str, np.ndarray]:
        """Which lanes are lost, and since when."""
        return {"lost": self.lost, "waited": self.lost_ticks}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave."""
        self.lost, self.lost_ticks = state["lost"].copy(), state["waited"].copy()
        self._any_lost = bool(self.lost.any())

    def __call__(self, step: Step) -> tuple[Step, np.ndarray | None]:
        """The step with finite numbers only, and which of its rows may be stored [n]; None for all of them.

        Raises EnvironmentCrashed where a lane stays lost.
        """
        blocked = self._find_blocked(step) if ACTION_MASK in step.obs else None
        if not self._any_lost and blocked is None and _is_finite(step):
            return step, None
        bad = {name: ~np.isfinite(value).reshape(len(value), -1).all(1) for name, value in step.obs.items()}
        bad_reward, was_lost = ~np.isfinite(step.reward), self.lost[step.lane]
        # Nothing is learned from what is shown of a death.
        bad_obs = np.any(list(bad.values()), 0) & (step.alive | ~step.is_bootstrap_row)
        still_lost = was_lost & ~step.first
        if blocked is not None:
            self._warn_blocked(step.lane, blocked & ~still_lost[:, None])
            bad_obs |= blocked.any(1)
        lost = still_lost | bad_obs | (bad_reward & ~step.first)
        # What a start tells of the row before it: nothing, where that row or its reward is not in the record.
        cut_starts = step.first & (was_lost | bad_reward)
        for name, rows in bad.items():
            self._warn_nonfinite(f"observation {name!r}", step.obs[name], step.lane, rows & bad_obs & ~still_lost)
        self._warn_nonfinite("reward", step.reward, step.lane, bad_reward & ~was_lost)
        self._update_lost(step.lane, lost, cut_starts)
        # What a lost lane is sent goes by its mask all the same.
        obs = {
            name: value if name == ACTION_MASK else _zero_rows(value, lost | bad[name])
            for name, value in step.obs.items()
        }
        reward = _zero_rows(step.reward, lost | cut_starts)
        return replace(step, obs=obs, reward=reward, alive=step.alive | cut_starts), ~lost

    def _find_blocked(self, step: Step) -> np.ndarray | None:
        """[n, branches] where a decision is awaited and no action allowed; None where there is no such row."""
        blocked = np.maximum.reduceat(step.obs[ACTION_MASK], self.branch_starts, axis=1) == 0
        blocked &= ~step.is_bootstrap_row[:, None]
        return blocked if blocked.any() else None

    def _warn_nonfinite(self, what: str, values: np.ndarray, lanes: np.ndarray, rows: np.ndarray) -> None:
        for row in np.flatnonzero(rows):
            self._warn(what, lanes[row], "is NaN" if np.isnan(values[row]).any() else "is infinite")

    def _warn_blocked(self, lanes: np.ndarray, blocked: np.ndarray) -> None:
        for row, branch in np.argwhere(blocked):
            self._warn(f"observation {ACTION_MASK!r}", lanes[row], f"forbids every action of branch {branch}")

    def _warn(self, what: str, lane: int, fault: str) -> None:
        LOG.warning(
            f"the {what} of lane {lane} of role {self.role!r} {fault} after {self.episode_returns.lengths[lane]} steps of an "
            "episode, which is cut there and does not count"
        )

    def _update_lost(self, lane: np.ndarray, lost: np.ndarray, cut_starts: np.ndarray) -> None:
        self.episode_returns.reset(lane[lost | cut_starts])
        self.lost[lane] = lost
        self.lost_ticks[lane] = np.where(lost, self.lost_ticks[lane] + 1, 0)
        self._any_lost = bool(self.lost.any())
        if self.lost_ticks.max() > MAX_LOST_TICKS:
            raise EnvironmentCrashed(
                f"lane {int(self.lost_ticks.argmax())} of role {self.role!r} has shown nothing to learn from for "
                f"{MAX_LOST_TICKS:,} ticks since a number or mask that cannot be; where its episodes have no end of their "
                "own, set base_config.max_step_each_iter"
            )


def _is_finite(step: Step) -> bool:
    """A sum of squares is the cheapest look (1 us for each array); it may overflow, so its infinity proves nothing."""
    for value in (step.reward, *step.obs.values()):
        if value.dtype.kind == "f" and not isfinite(np.vdot(value, value)):
            return False
    return True


def _zero_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A copy with zeros in these rows [n]."""
    values = values.copy()
    values[rows] = 0
    return values
