"""The running episodes of lanes, and invalid values, which truncate an episode and are never stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK

LOG = logging.getLogger(__name__)
MAX_LOST_TICKS = 30_000  # ticks in which a lane may be lost, without a finished episode, before the run ends
MAX_DISCARDED = 100  # episodes that may be discarded in a row, of a lane or of all lanes, before the run ends
LANE_ARRAYS = ("returns", "lengths", "discarded", "lost", "lost_ticks")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A finished episode."""

    role: str
    lane: int
    episode_return: float  # the undiscounted sum of its raw rewards
    length: int  # the number of its executed decisions
    team: str | None = None  # of the lane, if several teams share the agent of the role


def get_lane_index(step: Step, lanes: int) -> np.ndarray | slice:
    """Return the index of the lanes of `step` in arrays [lanes, ...]: a slice, which is faster, if all are present."""
    return slice(None) if len(step.lane) == lanes else step.lane


class InvalidEpisodes(RuntimeError):
    """All episodes contain invalid observations, rewards or action masks: nothing can be learned or evaluated."""


class RunningEpisodes:
    """The running episodes of the lanes of one role, without NaN and infinity, which are replaced in steps.

    A lane is lost from a row with such an observation or reward, or with a mask that allows no action of a branch,
    until its next `first`. Its episode is truncated before that row, as if the final observation were unknown, and is
    discarded: it is not finished. Each of the discrete `branches` has this number of actions.

    Attributes:
        returns: [lanes], the raw return of the running episode of each lane.
        lengths: [lanes], the number of its executed decisions.
        lost: [lanes] bool, whether each lane is lost.
        lost_ticks: [lanes], for how many ticks it was lost since it finished an episode.
        discarded: [lanes], the number of its episodes that were discarded since then.
        discarded_in_row: the number of episodes that were discarded since any lane finished one.
    """

    def __init__(self, role: str, lanes: int, branches: Sequence[int]):
        self.role = role
        self.branch_starts = np.cumsum([0, *branches])[:-1]  # the index in a mask at which each branch begins
        self.returns = np.zeros(lanes)
        self.lengths, self.discarded, self.lost_ticks = np.zeros((3, lanes), np.int64)
        self.lost = np.zeros(lanes, bool)
        self.discarded_in_row = 0
        self._last_fault = ""

    def grow(self, lanes: int) -> None:
        """Add lanes without an episode, so that there are `lanes` lanes."""
        for name in LANE_ARRAYS:
            setattr(self, name, np.pad(getattr(self, name), (0, lanes - len(getattr(self, name)))))

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, for a checkpoint."""
        episodes = {f"episodes/{name}": getattr(self, name) for name in ("returns", "lengths", "discarded")}
        in_row = {"episodes/discarded_in_row": np.array([self.discarded_in_row])}
        return {**episodes, **in_row, "lost": self.lost, "lost_ticks": self.lost_ticks}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what `state` returned, from a mapping that may hold further names."""
        for path in self.state():
            setattr(self, path.rpartition("/")[2], state[path].copy())
        self.discarded_in_row = int(state["episodes/discarded_in_row"][0])

    def add(self, step: Step) -> list[tuple[int, float, int]]:
        """Add one tick. Return lane, return and length of each episode that it ended."""
        lane = get_lane_index(step, len(self.lengths))
        self.returns[lane] += step.reward
        finished = []
        n_bootstrap = np.count_nonzero(step.is_bootstrap_row)
        if n_bootstrap or np.count_nonzero(step.first):
            is_over = step.first | step.is_bootstrap_row
            ended = step.lane[is_over & (self.lengths[lane] > 0)]
            finished = list(
                zip(ended.tolist(), self.returns[ended].tolist(), self.lengths[ended].tolist(), strict=True)
            )
            self.returns[ended] = 0
            self.lengths[ended] = 0
            if finished:
                self.discarded[ended] = self.discarded_in_row = 0
        self.lengths[lane] += ~step.is_bootstrap_row if n_bootstrap else 1
        return finished

    def __call__(self, step: Step) -> tuple[Step, np.ndarray | None]:
        """Return the step with finite values only, and which of its rows may be stored.

        Returns:
            The step, and [n] bool; None for all rows.

        Raises:
            InvalidEpisodes: more than `MAX_DISCARDED` episodes in a row were discarded, of one lane or of all lanes
                together, or a lane was lost for `MAX_LOST_TICKS` ticks.
        """
        blocked = self._find_blocked(step) if ACTION_MASK in step.obs else None
        if blocked is None and not np.count_nonzero(self.lost) and _is_finite(step):
            return step, None
        bad = {name: ~np.isfinite(value).reshape(len(value), -1).all(1) for name, value in step.obs.items()}
        bad_reward, was_lost = ~np.isfinite(step.reward), self.lost[step.lane]
        # The observation after a termination is not learned from.
        bad_obs = np.any(list(bad.values()), 0) & (step.alive | ~step.is_bootstrap_row)
        still_lost = was_lost & ~step.first
        if blocked is not None:
            for row, branch in np.argwhere(blocked & ~still_lost[:, None]):
                self._warn(f"observation {ACTION_MASK!r}", step.lane[row], f"forbids every action of branch {branch}")
            bad_obs |= blocked.any(1)
        lost = still_lost | bad_obs | (bad_reward & ~step.first)
        # The row before these starts, or its reward, is not stored, so their reward and `alive` belong to no row.
        truncated_starts = step.first & (was_lost | bad_reward)
        for name, rows in bad.items():
            self._warn_nonfinite(f"observation {name!r}", step.obs[name], step.lane, rows & bad_obs & ~still_lost)
        self._warn_nonfinite("reward", step.reward, step.lane, bad_reward & ~was_lost)
        newly_discarded = (lost & ~still_lost) | (truncated_starts & ~was_lost)
        self._discard(step.lane, lost, truncated_starts, newly_discarded)
        # The mask stays, since the actions of a lost lane are executed, too.
        obs = {
            name: value if name == ACTION_MASK else _zero_rows(value, lost | bad[name])
            for name, value in step.obs.items()
        }
        reward = _zero_rows(step.reward, lost | truncated_starts)
        return replace(step, obs=obs, reward=reward, alive=step.alive | truncated_starts), ~lost

    def _find_blocked(self, step: Step) -> np.ndarray | None:
        """Return [n, branches]: whether a row needs a decision, but its mask allows no action; None without one."""
        blocked = np.maximum.reduceat(step.obs[ACTION_MASK], self.branch_starts, axis=1) == 0
        blocked &= ~step.is_bootstrap_row[:, None]
        return blocked if blocked.any() else None

    def _warn_nonfinite(self, name: str, values: np.ndarray, lanes: np.ndarray, rows: np.ndarray) -> None:
        for row in np.flatnonzero(rows):
            self._warn(name, lanes[row], "is NaN" if np.isnan(values[row]).any() else "is infinite")

    def _warn(self, name: str, lane: int, fault: str) -> None:
        self._last_fault = (
            f"the {name} of lane {lane} of role {self.role!r} {fault} after {self.lengths[lane]} steps of an episode"
        )
        LOG.warning(f"{self._last_fault}, which is truncated there and not counted")

    def _discard(self, lane: np.ndarray, lost: np.ndarray, truncated: np.ndarray, newly_discarded: np.ndarray) -> None:
        """Discard the running episodes of lost lanes, and of those whose last row or its reward is not stored.

        Raises InvalidEpisodes if nothing valid can be expected any more.
        """
        has_finished, ended = self.discarded[lane] == 0, lane[lost | truncated]
        self.returns[ended] = 0
        self.lengths[ended] = 0
        self.discarded[lane[newly_discarded]] += 1
        self.discarded_in_row += int(newly_discarded.sum())
        self.lost[lane] = lost
        self.lost_ticks[lane] = np.where(has_finished, 0, self.lost_ticks[lane]) + lost
        if self.discarded_in_row > MAX_DISCARDED and self.discarded.all():
            where = f"all {self.discarded_in_row} episodes of role {self.role!r}"
        elif self.discarded.max() > MAX_DISCARDED:
            where = f"all {self.discarded.max()} episodes of lane {self.discarded.argmax()} of role {self.role!r}"
        elif self.lost_ticks.max() > MAX_LOST_TICKS:
            raise InvalidEpisodes(
                f"{self._last_fault}, and no later step of lane {self.lost_ticks.argmax()} was valid for "
                f"{MAX_LOST_TICKS:,} ticks; if its episodes have no end, set base_config.max_step_each_iter"
            )
        else:
            return
        raise InvalidEpisodes(f"{where} since the last valid one are invalid; in the last of them {self._last_fault}")


def _is_finite(step: Step) -> bool:
    """Return whether all values are finite; False also if the sum of squares of finite values overflows.

    The sum of squares is the fastest test (1 microsecond for each array).
    """
    for value in (step.reward, *step.obs.values()):
        if value.dtype.kind == "f" and not isfinite(np.vdot(value, value)):
            return False
    return True


def _zero_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a copy of `values` [n, ...] with zeros in `rows` [n] bool."""
    values = values.copy()
    values[rows] = 0
    return values
