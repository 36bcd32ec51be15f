"""Wrappers around an adapter: for opening and restarting it, for groups, previous actions and shared agents."""

from __future__ import annotations

import logging
import traceback
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from algorithm.adapters.adapter import (
    Adapter,
    EnvConfig,
    EnvironmentCrashed,
    SimulatorError,
    UnsupportedEnvironment,
    derive_seed,
)
from algorithm.rollout import Step, merge_steps
from algorithm.specs import ActionSpec, ObsSpec, Role

LOG = logging.getLogger(__name__)
PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"
OBSERVATION_NAMES = {"action": PREVIOUS_ACTION, "reward": PREVIOUS_REWARD}  # {kind: name of the observation}


def _delegate(name: str) -> Any:
    """Return a property with the value that the inner adapter has."""
    return property(lambda self: getattr(self._inner, name))


class AdapterWrapper(Adapter):
    """An adapter that delegates every method to another adapter, `_inner`; a subclass overrides what it changes."""

    _inner: Adapter
    roles = _delegate("roles")
    restarts = _delegate("restarts")
    last_error = _delegate("last_error")
    shared_agents = _delegate("shared_agents")

    def reset(self, seed: int) -> dict[str, Step]:
        return self._inner.reset(seed)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        return self._inner.receive()

    def statistics(self) -> dict[str, float]:
        return self._inner.statistics()

    def list_hidden_lanes(self) -> Mapping[str, Collection[int]]:
        return self._inner.list_hidden_lanes()

    def find_goal_rewards(self) -> Any:
        return self._inner.find_goal_rewards()

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        return None if inner is None else {"inner": inner, **self._own_state()}

    def _own_state(self) -> dict[str, Any]:
        """Return what this wrapper adds to the state of the inner adapter, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))

    def close(self) -> None:
        self._inner.close()


class OnDemand(AdapterWrapper):
    """A wrapper that makes its adapter with `make` when it is first used, which also raises what `make` raises.

    An adapter that is never used, for example because a run ends without an evaluation, is never opened.
    """

    def __init__(self, make: Callable[[], Adapter]):
        self._make = make

    @cached_property
    def _inner(self) -> Adapter:  # type: ignore[override]
        return self._make()

    def close(self) -> None:
        if "_inner" in vars(self):
            self._inner.close()


class RestartOnFailure(AdapterWrapper):
    """A wrapper that makes another adapter after a crash; all episodes are truncated, and new ones start.

    Args:
        make: A function that returns an adapter.
        max_restarts: Maximum number of restarts, including the adapter's restarts of single environments; None is no
            limit.

    Raises:
        EnvironmentCrashed: The maximum is exceeded, or the new adapter does not start.
    """

    def __init__(self, make: Callable[[], Adapter], max_restarts: int | None):
        self._make = make
        self._max_restarts = max_restarts
        self._inner = make()
        self._failures = 0  # adapters that crashed
        self._past_restarts = 0  # restarts before the present adapter
        self._seed: int | None = None
        self._first_steps: dict[str, Step] | None = None  # of an adapter that replaced one that crashed in `send`

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._past_restarts + self._inner.restarts

    def reset(self, seed: int) -> dict[str, Step]:
        has_started, self._seed, self._first_steps = self._seed is not None, seed, None
        try:
            return self._inner.reset(seed)
        except SimulatorError as error:
            if not has_started:
                raise
            return self._restart(error)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        try:
            self._inner.send(actions)
        except EnvironmentCrashed as error:
            self._first_steps = self._restart(error)

    def receive(self) -> dict[str, Step]:
        first_steps, self._first_steps = self._first_steps, None
        if first_steps is not None:
            return first_steps
        before = self._inner.restarts
        try:
            steps = self._inner.receive()
        except EnvironmentCrashed as error:
            return self._restart(error)
        if self._inner.restarts > before:
            self._check_limit(None)
        return steps

    def _own_state(self) -> dict[str, Any]:
        return {"failures": self._failures, "past_restarts": self._past_restarts, "seed": self._seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._failures, self._past_restarts, self._seed = state["failures"], state["past_restarts"], state["seed"]

    def _restart(self, error: SimulatorError) -> dict[str, Step]:
        """Replace the adapter and return the first Steps of the new one."""
        self._inner.close()
        self._failures += 1
        self._past_restarts += 1
        self._check_limit(error)
        LOG.warning(f"{error}; all environments are restarted and their episodes truncated")
        LOG.info(traceback.format_exc())
        try:
            inner = self._make()
            self._past_restarts, self._inner = self.restarts, inner
            return inner.reset(derive_seed(self._seed or 0, self._failures))
        except SimulatorError as second_error:
            raise EnvironmentCrashed(f"{second_error}; it was restarted after: {error}") from second_error

    def _check_limit(self, error: SimulatorError | None) -> None:
        if self._max_restarts is not None and self.restarts > self._max_restarts:
            raise EnvironmentCrashed(
                f"the environment crashed {self.restarts} times, which is more than base_config.max_env_restarts: "
                f"{error or self._inner.last_error}"
            ) from error


class EnvGroups(Adapter):
    """An adapter whose environments are divided into groups that take turns, each with its own adapter.

    `reset` returns the Step of all lanes. After that, `send` starts the step of the lanes of the last Step, and
    `receive` returns the Step of the group that has been stepping for the longest time, while the others continue to
    step. The environments have the lanes and the seeds that they have without groups.

    Args:
        make: A function that returns an adapter for a configuration; its `supports_groups` must be true.
        config: The configuration of all environments.
        n_groups: Number of groups, at most the number of environments.

    Raises:
        UnsupportedEnvironment: The environments cannot step while the agent decides, or `make` raised this error.
        EnvironmentStartError: `make` raised this error.
    """

    def __init__(self, make: Callable[[EnvConfig], Adapter], config: EnvConfig, n_groups: int):
        bounds = [config.n_envs * number // n_groups for number in range(n_groups + 1)]
        self._lanes = [slice(start, end) for start, end in pairwise(bounds)]  # of each group
        self._groups: list[Adapter] = []
        try:
            for lanes in self._lanes:
                part = replace(config, n_envs=lanes.stop - lanes.start, first_env=config.first_env + lanes.start)
                self._groups.append(make(part))
                if not self._groups[0].supports_groups:
                    raise UnsupportedEnvironment(
                        f"env_groups is {n_groups}, but only environments of Gymnasium in subprocesses or threads can "
                        "take turns: set env_groups to 1, or env_args.vectorization_mode to async"
                    )
        except BaseException:
            self.close()
            raise
        self.roles = {name: replace(role, lanes=config.n_envs) for name, role in self._groups[0].roles.items()}
        self._active_rows: dict[int, slice] = {}  # {group: its rows in the last Step}
        self._stepping: deque[int] = deque()  # groups that step, in the order in which they started

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return sum(group.restarts for group in self._groups)

    @property
    def last_error(self) -> str:  # type: ignore[override]
        return next((group.last_error for group in self._groups if group.last_error), "")

    def reset(self, seed: int) -> dict[str, Step]:
        steps = [
            self._shift_lanes(number, group.reset(seed + self._lanes[number].start))
            for number, group in enumerate(self._groups)
        ]
        self._active_rows = dict(enumerate(self._lanes))
        self._stepping.clear()
        return {role: merge_steps([step[role] for step in steps]) for role in self.roles}

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for number, rows in self._active_rows.items():
            self._groups[number].send({role: action[rows] for role, action in actions.items()})
            self._stepping.append(number)

    def receive(self) -> dict[str, Step]:
        number = self._stepping.popleft()
        self._active_rows = {number: slice(None)}
        return self._shift_lanes(number, self._groups[number].receive())

    def close(self) -> None:
        for group in self._groups:
            group.close()

    def _shift_lanes(self, number: int, steps: Mapping[str, Step]) -> dict[str, Step]:
        """Return the Steps of a group with its lanes numbered among those of all groups."""
        first = self._lanes[number].start
        return {role: replace(step, lane=step.lane + first) for role, step in steps.items()}


def find_previous_kinds(role: Role) -> list[str]:
    """Return the kinds (action, reward) that are observations of a role."""
    return [kind for kind, name in OBSERVATION_NAMES.items() if name in role.obs_specs]


class PreviousTracker:
    """A store of the previous actions of a role's lanes, which returns the observations of `kinds` (action, reward).

    The observation of an action is its continuous values in [-1, 1], then each discrete branch one-hot. At the start
    of an episode, action and reward are zero.
    """

    def __init__(self, kinds: Collection[str], lanes: int, spec: ActionSpec):
        shapes = {"action": (spec.encoded_size,), "reward": (1,)}
        self.specs = {OBSERVATION_NAMES[kind]: ObsSpec(shapes[kind]) for kind in kinds}
        self.action_spec = spec
        self.action = np.zeros((lanes, spec.encoded_size), np.float32)

    def grow(self, lanes: int) -> None:
        """Add lanes without a previous action, up to `lanes` lanes."""
        if lanes > len(self.action):
            self.action = np.pad(self.action, ((0, lanes - len(self.action)), (0, 0)))

    def record_action(self, lane: np.ndarray, action: np.ndarray) -> None:
        """Store the actions [n, size] that the lanes [n] execute next."""
        self.action[lane] = self.action_spec.encode(action)

    def __call__(self, lane: np.ndarray, first: np.ndarray, reward: np.ndarray) -> dict[str, np.ndarray]:
        """Return the observations of these lanes.

        Args:
            lane: [n] int64.
            first: [n] bool, lanes in which an episode starts.
            reward: [n] float32, rewards of the previous actions.
        """
        self.action[lane[first]] = 0
        values = {PREVIOUS_ACTION: self.action[lane], PREVIOUS_REWARD: np.where(first, np.float32(0), reward)[:, None]}
        return {name: values[name] for name in self.specs}


class RoleWrapper(AdapterWrapper):
    """A wrapper that presents the roles of its inner adapter in another form, and their Steps with them.

    A subclass implements `_update_roles`, which sets `roles` from the roles of the inner adapter, and `_convert`.
    """

    roles: Mapping[str, Role] = {}

    def __init__(self, inner: Adapter):
        self._inner = inner
        self._active_lanes: dict[str, np.ndarray] = {}  # {role: lanes [n] of its last Step}
        self._update_roles()

    def reset(self, seed: int) -> dict[str, Step]:
        return self._present(self._inner.reset(seed))

    def receive(self) -> dict[str, Step]:
        return self._present(self._inner.receive())

    def _own_state(self) -> dict[str, Any]:
        return {"active_lanes": {role: lanes.tolist() for role, lanes in self._active_lanes.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._update_roles()
        self._active_lanes = {role: np.array(lanes, np.int64) for role, lanes in state["active_lanes"].items()}

    def _present(self, steps: dict[str, Step]) -> dict[str, Step]:
        self._update_roles()
        converted = self._convert(steps)
        self._active_lanes = {role: step.lane for role, step in converted.items()}
        return converted

    @abstractmethod
    def _update_roles(self) -> None: ...

    @abstractmethod
    def _convert(self, steps: dict[str, Step]) -> dict[str, Step]: ...


class PreviousActionReward(RoleWrapper):
    """A wrapper that adds each lane's previous action or reward, or both, to the observations, as `kinds` selects.

    Raises UnsupportedEnvironment if the simulator itself has an observation of the same name.
    """

    def __init__(self, inner: Adapter, kinds: Collection[str]):
        self._kinds = kinds
        self._trackers: dict[str, PreviousTracker] = {}
        super().__init__(inner)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, action in actions.items():
            self._trackers[role].record_action(self._active_lanes[role], action)
        self._inner.send(actions)

    def _own_state(self) -> dict[str, Any]:
        return {
            **super()._own_state(),
            "actions": {role: tracker.action.tolist() for role, tracker in self._trackers.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        for role, actions in state["actions"].items():
            self._trackers[role].action[:] = actions

    def _convert(self, steps: dict[str, Step]) -> dict[str, Step]:
        return {
            role: replace(step, obs={**step.obs, **self._trackers[role](step.lane, step.first, step.reward)})
            for role, step in steps.items()
        }

    def _update_roles(self) -> None:
        """Add trackers of new roles and new lanes, and extend the specs of all roles."""
        for name, role in self._inner.roles.items():
            if name not in self._trackers:
                self._trackers[name] = tracker = PreviousTracker(self._kinds, role.lanes, role.action_spec)
                if clash := tracker.specs.keys() & role.obs_specs.keys():
                    raise UnsupportedEnvironment(
                        f"observe_previous: the simulator itself has an observation {min(clash)!r}"
                    )
            self._trackers[name].grow(role.lanes)
        self.roles = {
            name: replace(role, obs_specs={**role.obs_specs, **self._trackers[name].specs})
            for name, role in self._inner.roles.items()
        }


class SharedAgents(RoleWrapper):
    """A wrapper whose roles are agents: the lanes of the roles that share an agent are lanes of one role.

    Args:
        inner: The adapter.
        agents: {role: agent}. The agent of any other role is the one in `inner.shared_agents`, or the role itself.
        teams: {agent: team of each lane}, lanes that are known before their roles appear, as in a resumed run. A role
            keeps its lanes; further lanes are appended.

    Raises:
        UnsupportedEnvironment: Roles share an agent, but their observations or actions differ.
    """

    shared_agents = None

    def __init__(self, inner: Adapter, agents: Mapping[str, str], teams: Mapping[str, Sequence[str]]):
        self._agents = agents
        self._teams = {agent: list(names) for agent, names in teams.items()}  # {agent: role of each lane}
        self._lanes: dict[str, np.ndarray] = {}  # {role: its lanes among the lanes of its agent}
        self._known_roles: dict[str, Role] = {}  # the roles of `inner` at the last update
        super().__init__(inner)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        by_role = {}
        for agent, action in actions.items():
            role_of_row = np.array(self._teams[agent])[self._active_lanes[agent]]
            for role in dict.fromkeys(role_of_row.tolist()):
                by_role[role] = action[role_of_row == role]
        self._inner.send(by_role)

    def _get_agent(self, role: str) -> str:
        return self._agents.get(role) or (self._inner.shared_agents or {}).get(role, role)

    def _update_roles(self) -> None:
        """Update the roles from the roles of `inner`; append the lanes that their agents do not have yet."""
        new_roles = {name: role for name, role in self._inner.roles.items() if self._known_roles.get(name) is not role}
        for name, role in sorted(new_roles.items()):  # the order of a simulator's roles may vary
            self._check_specs(name, role)
            self._known_roles[name] = role
            teams = self._teams.setdefault(self._get_agent(name), [])
            teams.extend([name] * (role.lanes - teams.count(name)))
            self._lanes[name] = np.flatnonzero(np.array(teams) == name)
        for name, role in new_roles.items():
            agent = self._get_agent(name)
            teams = self._teams[agent]
            shared = () if set(teams) == {agent} else tuple(teams)
            self.roles = {**self.roles, agent: replace(role, lanes=len(teams), teams=shared)}

    def _check_specs(self, name: str, role: Role) -> None:
        """Raise UnsupportedEnvironment if another role with the same agent has other specs."""
        agent = self._get_agent(name)
        for other, known in self._known_roles.items():
            same = (known.obs_specs, known.action_spec) == (role.obs_specs, role.action_spec)
            if not same and self._get_agent(other) == agent:
                raise UnsupportedEnvironment(
                    f"the roles {other!r} and {name!r} share the agent {agent!r}, but their observations or actions "
                    f"differ; give one of them its own agent: ma_config.{name}.agent={name}"
                )

    def _convert(self, steps: dict[str, Step]) -> dict[str, Step]:
        """Return the Steps of roles as Steps of agents."""
        by_agent: dict[str, list[Step]] = defaultdict(list)
        for role, step in steps.items():
            by_agent[self._get_agent(role)].append(replace(step, lane=self._lanes[role][step.lane]))
        return {agent: merge_steps(agent_steps) for agent, agent_steps in by_agent.items()}
