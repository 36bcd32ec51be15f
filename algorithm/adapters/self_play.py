"""A wrapper in whose episodes one team learns, while opponents play for the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.wrappers import AdapterWrapper
from algorithm.errors import UserError
from algorithm.rollout import Step
from algorithm.specs import Role


class Opponents(ABC):
    """The opponents of a learning team, and the choice of the team that learns."""

    opponent: str  # the name of the opponent of the episodes that start now

    @abstractmethod
    def choose_team(self, teams: Sequence[str], game: int) -> str:
        """Return the team that learns in an episode, the `game`-th of its environment."""

    @abstractmethod
    def get_state_size(self, role: str) -> int:
        """Return the size of the memory of the agents of a role."""

    @abstractmethod
    def act(self, opponent: str, role: str, step: Step, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return actions [n, size] of an opponent for lanes of a role, and its next memory [n, state_size]."""

    def reset(self, seed: int) -> None:
        """Prepare for new episodes in every lane."""

    def count(self, env_steps: int) -> None:
        """Count the executed decisions of learning lanes."""

    def record(self, role: str, opponent: str, reward: float) -> None:
        """Record the end of an episode of a learning lane, whose last reward is positive after a victory."""

    def collect_metrics(self) -> Mapping[str, float]:
        """Return metrics by name."""
        return {}


@dataclass(eq=False)
class _Lanes:
    """The lanes of a role, and the memories [lanes, state_size] of their opponents."""

    state_size: int
    teams: list[str] = field(default_factory=list)
    index: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # among the lanes of its team
    learns: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # in its present episode
    open: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # its last learning row has no successor yet
    opponent: np.ndarray = field(default_factory=lambda: np.zeros(0, object))  # of its present episode

    def __post_init__(self) -> None:
        self.memory = np.zeros((0, self.state_size), np.float32)

    def grow(self, name: str, role: Role) -> None:
        """Add the new lanes of a role."""
        added = role.lanes - len(self.teams)
        self.teams = [role.find_team(lane) or name for lane in range(role.lanes)]
        self.index = np.array([self.teams[:lane].count(team) for lane, team in enumerate(self.teams)])
        self.learns, self.open = (np.pad(each, (0, added)) for each in (self.learns, self.open))
        self.opponent = np.append(self.opponent, np.full(added, "", object))
        self.memory = np.pad(self.memory, ((0, added), (0, 0)))

    def state(self) -> dict[str, Any]:
        """Return the state of all lanes as JSON values."""
        return {name: getattr(self, name).tolist() for name in ("learns", "open", "opponent", "memory")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name, values in state.items():
            getattr(self, name)[:] = np.array(values, getattr(self, name).dtype).reshape(getattr(self, name).shape)


class SelfPlay(AdapterWrapper):
    """A wrapper that presents the rows of the lanes that learn; opponents decide for all other lanes.

    In each episode one team learns. A tick without a row of a learning lane is followed by the next one at once. When a
    lane stops to learn, its last action is followed by one more row, at which no action is executed.

    Args:
        inner: the adapter; a team is a team of one of its roles, or a role without teams.
        opponents: the opponents.

    Raises:
        UserError: there is only one team.
    """

    def __init__(self, inner: Adapter, opponents: Opponents):
        self._inner, self._opponents = inner, opponents
        self._lanes: dict[str, _Lanes] = {}
        self._games = np.zeros(0, np.int64)  # number of the present game of the lanes with this index
        self._started: list[set[str]] = []  # teams that have started an episode in it
        self._sizes: dict[str, int] = {}  # {role: rows of its last Step}
        self._presented: dict[str, np.ndarray] = {}  # {role: rows of its last Step that are presented}
        self._decided: dict[str, dict[int, np.ndarray]] = {}  # {role: {row: action of an opponent}}
        self._n_executed = 0  # presented rows whose actions are executed
        self._hidden: dict[str, set[int]] = {}  # lanes of each role for which opponents have decided

    def reset(self, seed: int) -> dict[str, Step]:
        self._opponents.reset(seed)
        self._games[:] = 0
        self._started = [set() for _ in self._started]
        for lanes in self._lanes.values():
            lanes.open[:] = False
        return self._present_next(self._inner.reset(seed))

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._opponents.count(self._n_executed)
        self._inner.send(self._merge(actions))

    def receive(self) -> dict[str, Step]:
        return self._present_next(self._inner.receive())

    def list_hidden_lanes(self) -> Mapping[str, Collection[int]]:
        return self._hidden

    def _own_state(self) -> dict[str, Any]:
        return {
            "lanes": {role: lanes.state() for role, lanes in self._lanes.items()},
            "games": self._games.tolist(),
            "started": [sorted(teams) for teams in self._started],
            "sizes": self._sizes,
            "presented": {role: rows.tolist() for role, rows in self._presented.items()},
            "decided": {
                role: [[row, *each.tolist()] for row, each in rows.items()] for role, rows in self._decided.items()
            },
            "executed": self._n_executed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._update_lanes()
        for role, lanes in state["lanes"].items():
            self._lanes[role].restore(lanes)
        self._games, self._started = np.array(state["games"], np.int64), [set(teams) for teams in state["started"]]
        self._sizes = dict(state["sizes"])
        self._presented = {role: np.array(rows, np.int64) for role, rows in state["presented"].items()}
        self._decided = {
            role: {row: np.array(action, np.float32) for row, *action in rows}
            for role, rows in state["decided"].items()
        }
        self._n_executed = state["executed"]

    def _merge(self, actions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the actions of all rows of the last Steps, given those of the presented rows."""
        merged = {}
        for role, rows in self._sizes.items():
            merged[role] = np.zeros((rows, self._inner.roles[role].action_spec.size), np.float32)
            if role in actions:
                merged[role][self._presented[role]] = actions[role]
            for row, action in self._decided[role].items():
                merged[role][row] = action
        return merged

    def _present_next(self, steps: dict[str, Step]) -> dict[str, Step]:
        """Return the rows of learning lanes; execute the decisions of opponents until there are any."""
        self._hidden = {}
        presented = self._present(steps)
        while not presented and any(self._decided.values()):
            self._inner.send(self._merge({}))
            presented = self._present(self._inner.receive())
        return presented

    def _present(self, steps: dict[str, Step]) -> dict[str, Step]:
        """Return the rows of learning lanes, and let opponents decide for the others."""
        self._update_lanes()
        self._sizes = {role: len(step.lane) for role, step in steps.items()}
        self._presented, self._decided, self._n_executed = {}, {}, 0
        presented = {}
        for role, step in steps.items():
            rows = self._present_role(role, step)
            if rows is not None:
                presented[role] = rows
        return presented

    def _present_role(self, role: str, step: Step) -> Step | None:
        lanes, lane = self._lanes[role], step.lane
        was_open, opponents = lanes.open[lane], lanes.opponent[lane]
        for row in np.flatnonzero(step.first):
            self._start_episode(lanes, int(lane[row]))
        learns = lanes.learns[lane]
        ended = was_open & (step.first | step.is_bootstrap_row)
        for row in np.flatnonzero(ended):
            self._opponents.record(role, opponents[row], float(step.reward[row]))
        self._decide(role, step, ~learns & ~step.is_bootstrap_row)
        is_last = was_open & step.first & ~learns  # of a lane that does not learn any more
        begins_again = step.first & learns & ~was_open  # its reward follows no action of a learning lane
        shown = learns | is_last
        lanes.open[lane] = learns & ~step.is_bootstrap_row
        self._n_executed += int(np.count_nonzero(lanes.open[lane]))
        self._presented[role] = np.flatnonzero(shown)
        if not len(self._presented[role]):
            return None
        step = replace(
            step,
            # With `first`, nothing is learned from the observation, which is that of another episode.
            first=step.first & ~(is_last & ~step.alive),
            is_bootstrap_row=step.is_bootstrap_row | is_last,
            reward=np.where(begins_again, np.float32(0), step.reward),
            alive=step.alive | begins_again,
        )
        return step.take(shown)

    def _start_episode(self, lanes: _Lanes, lane: int) -> None:
        team, index = lanes.teams[lane], int(lanes.index[lane])
        if team in self._started[index]:
            self._games[index] += 1
            self._started[index] = set()
        self._started[index].add(team)
        lanes.learns[lane] = self._opponents.choose_team(self._teams, int(self._games[index])) == team
        lanes.opponent[lane] = self._opponents.opponent

    def _decide(self, role: str, step: Step, rows: np.ndarray) -> None:
        """Let the opponents of `rows` decide, [n] bool."""
        lanes, decided = self._lanes[role], self._decided.setdefault(role, {})
        opponents = lanes.opponent[step.lane]
        self._hidden.setdefault(role, set()).update(step.lane[rows].tolist())
        for opponent in dict.fromkeys(opponents[rows].tolist()):
            chosen = rows & (opponents == opponent)
            part = step.take(chosen)
            actions, memory = self._opponents.act(opponent, role, part, part.select_memory(lanes.memory))
            lanes.memory[part.lane] = memory
            decided |= zip(np.flatnonzero(chosen).tolist(), actions, strict=True)

    def _update_lanes(self) -> None:
        """Add new roles and lanes. Raises UserError if there is only one team."""
        roles = self._inner.roles
        if all(name in self._lanes and len(self._lanes[name].teams) == role.lanes for name, role in roles.items()):
            return
        for name, role in roles.items():
            if name not in self._lanes:
                self._lanes[name] = _Lanes(self._opponents.get_state_size(name))
            self._lanes[name].grow(name, role)
        self._teams = sorted({team for lanes in self._lanes.values() for team in lanes.teams})
        if len(self._teams) == 1:
            raise UserError(
                f"opponent_config.opponents: all agents are of the role {self._teams[0]!r}; opponents need an "
                "environment with two roles or more"
            )
        games = max(int(lanes.index.max(initial=0)) + 1 for lanes in self._lanes.values())
        self._started += [set() for _ in range(games - len(self._started))]
        self._games = np.pad(self._games, (0, games - len(self._games)))
