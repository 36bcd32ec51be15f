"""The adapter of PettingZoo: environments of several agents that act simultaneously or in turn; each is a role."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, EnvironmentCrashed, SimulatorError, UnsupportedEnvironment
from algorithm.adapters.env_errors import (
    EnvName,
    convert_crashes,
    convert_start_errors,
    describe_error,
    suppress_warnings,
)
from algorithm.adapters.spaces import AgentSpaces, check_ignored, name_spaces
from algorithm.adapters.vector import apply_wrappers, load_callable
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK


class PettingZooAdapter(Adapter):
    """An adapter of PettingZoo: every agent is a role that has a lane in each of `n_envs` environments.

    The name in `config` is an id of PettingZoo (`sisl/multiwalker_v9`), `module:function`, or a function. A function
    returns a ParallelEnv or an AECEnv, whose agents act in turn: each has a row only when it is its turn. An agent
    whose episode ends early is absent until the episodes of all agents have ended; then the next episode starts. Action
    masks are read from an observation `action_mask`, or from the agent's infos of every reset and step.

    Raises:
        UnsupportedEnvironment: The id is unknown, or a space is not supported.
        EnvironmentStartError: The environment does not start.
        EnvironmentCrashed: The environment raised after the start.
    """

    unsupported_settings: ClassVar[Mapping[str, str]] = {
        "env_timeout": "environments of PettingZoo run in this process"
    }

    def __init__(self, config: EnvConfig):
        self._config = config
        self._envs: list[EpisodicEnv] = []
        try:
            with convert_start_errors(config.name):
                for lane in range(config.n_envs):
                    self._envs.append(_make_episodic(_make_env(config), lane, config.max_episode_steps))
                rows = self._envs[0].reset(0)  # whether infos contain masks is only known after a reset
            self._spaces = self._read_spaces(rows)
        except (SimulatorError, UnsupportedEnvironment):
            self.close()
            raise
        self.roles = {name: spaces.role for name, spaces in self._spaces.items()}
        self._active_lanes: dict[str, np.ndarray] = {}  # {role: lanes [n] of its last Step}

    def reset(self, seed: int) -> dict[str, Step]:
        with convert_start_errors(self._config.name):
            rows = [row for env in self._envs for row in env.reset(seed)]
        return self._make_steps(rows)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        actions_by_env: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, action in actions.items():
            spec = self.roles[name].action_spec
            env_actions = spec.to_env_units(action)
            for i, lane in enumerate(self._active_lanes[name].tolist()):
                actions_by_env[lane][name] = _select_action(env_actions, i)
        rows: list[Row] = []
        for env in self._envs:
            with convert_crashes(self._config.name):
                rows += env.step(actions_by_env[env.lane]) if env.active_obs else env.reset()
        return self._make_steps(rows) if rows else self.step({})

    def close(self) -> None:
        while self._envs:
            self._envs.pop().env.close()

    def _read_spaces(self, rows: Iterable[Row]) -> dict[str, AgentSpaces]:
        env = self._envs[0].env
        infos = {**getattr(env, "infos", {}), **{row.agent: row.info for row in rows}}
        agents = dict.fromkeys([*getattr(env, "possible_agents", ()), *infos])
        names = {agent: list(name_spaces(env.observation_space(agent))) for agent in agents}
        ignored = self._config.ignore_observations
        check_ignored(ignored, [name for of_agent in names.values() for name in of_agent])
        return {
            str(agent): AgentSpaces(
                env.observation_space(agent),
                env.action_space(agent),
                replace(self._config, ignore_observations=[name for name in ignored if name in names[agent]]),
                lambda: [infos.get(agent, {}).get(ACTION_MASK)],  # noqa: B023  # called at once
            )
            for agent in agents
        }

    def _make_steps(self, rows: list[Row]) -> dict[str, Step]:
        """Return the rows of all environments as one Step for each role that has any."""
        by_role: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_role[str(row.agent)].append(row)
        if unknown := by_role.keys() - self._spaces.keys():
            error = ValueError(f"the agent {min(unknown)!r} is not among its possible_agents")
            raise EnvironmentCrashed(describe_error(self._config.name, "crashed", error))
        steps = {name: self._make_step(name, role_rows) for name, role_rows in by_role.items()}
        self._active_lanes = {name: step.lane for name, step in steps.items()}
        return steps

    def _make_step(self, name: str, rows: list[Row]) -> Step:
        """Return the Step of some rows of a role, in their order."""
        lane = np.array([row.lane for row in rows], np.int64)
        return Step(
            lane=lane,
            obs=self._spaces[name]([row.obs for row in rows], [row.info.get(ACTION_MASK) for row in rows]),
            first=np.array([row.first for row in rows]),
            is_bootstrap_row=np.array([row.is_bootstrap for row in rows]),
            reward=np.array([row.reward for row in rows], np.float32),
            alive=np.array([row.alive for row in rows]),
            group=lane,  # the agents of one environment
        )


@dataclass(slots=True, kw_only=True)
class Row:
    """A record of one tick of one agent in one environment."""

    agent: Any
    lane: int
    obs: Any
    info: Mapping[str, Any]
    first: bool = False
    is_bootstrap: bool = False
    reward: float = 0.0
    alive: bool = True


class EpisodicEnv(ABC):
    """An environment that is lane `lane` of every role, with episodes of at most `limit` steps unless that is None."""

    active_obs: dict[Any, Any]  # observations of the agents that await an action; empty at the end of an episode

    def __init__(self, env: Any, lane: int, limit: int | None):
        self.env, self.lane, self.limit = env, lane, limit
        self._seeds = np.random.SeedSequence()

    def reset(self, seed: int | None = None) -> list[Row]:
        """Start an episode and return a row for each of its agents. Raises ValueError if there are none.

        Every episode has its own seed, derived from the last `seed` that was passed.
        """
        if seed is not None:
            self._seeds = np.random.SeedSequence([seed, self.lane])
        episode = self._seeds.spawn(1)[0]
        self.steps = 0
        self.active_obs = {}
        with suppress_warnings():
            rows = self._start(int(episode.generate_state(1)[0] >> 1))
        if not rows:
            raise ValueError("an episode starts without agents")
        return rows

    @abstractmethod
    def _start(self, seed: int) -> list[Row]:
        """Start an episode and return its first rows."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> list[Row]:
        """Execute the actions of the agents that await one, {role: action}; return the rows that follow."""

    def _make_row(self, agent: Any, observed: Any, info: Mapping[str, Any] | None, **fields: Any) -> Row:
        return Row(agent=agent, lane=self.lane, obs=observed, info=info or {}, **fields)


class SimultaneousEnv(EpisodicEnv):
    """A ParallelEnv. A step has a row for each agent that acted, and for each new agent."""

    def _start(self, seed: int) -> list[Row]:
        obs, infos = self.env.reset(seed=seed)
        self.active_obs = {agent: obs[agent] for agent in self.env.agents}
        self.ended_agents: set[Any] = set()
        return [self._make_row(agent, each, infos.get(agent), first=True) for agent, each in self.active_obs.items()]

    def step(self, actions: Mapping[str, Any]) -> list[Row]:
        obs, rewards, terminated, truncated, infos = self.env.step(
            {agent: actions[str(agent)] for agent in self.active_obs}
        )
        self.steps += 1
        rows = []
        for agent, last_obs in self.active_obs.items():
            is_terminated = bool(terminated.get(agent, False))
            has_ended = is_terminated or bool(truncated.get(agent, False)) or self.steps == self.limit
            if has_ended:
                self.ended_agents.add(agent)
            if agent in obs or is_terminated:  # the value of an observation after a termination is not used
                flags = {"is_bootstrap": has_ended, "alive": not is_terminated}
                reward, observed = float(rewards.get(agent, 0.0)), obs.get(agent, last_obs)
                rows.append(self._make_row(agent, observed, infos.get(agent), reward=reward, **flags))
            elif not has_ended:
                raise ValueError(f"the agent {agent!r} has no observation after its action, and its episode continues")
        known = self.active_obs.keys() | self.ended_agents
        new_agents = [agent for agent in self.env.agents if agent not in known and self.steps != self.limit]
        rows += [self._make_row(agent, obs[agent], infos.get(agent), first=True) for agent in new_agents]
        self.active_obs = {row.agent: row.obs for row in rows if not row.is_bootstrap}
        return rows


class TurnBasedEnv(EpisodicEnv):
    """An AECEnv. A step has a row for the agent whose turn is next, and for each agent whose episode has ended.

    The reward of a row is the sum since the agent's last turn. An agent that never had a turn has no row.
    """

    def _start(self, seed: int) -> list[Row]:
        self.env.reset(seed=seed)
        self.started_agents: set[Any] = set()
        return self._continue()

    def step(self, actions: Mapping[str, Any]) -> list[Row]:
        self.env.step(actions[str(self.env.agent_selection)])
        self.steps += 1
        return self._continue()

    def _continue(self) -> list[Row]:
        """Return the rows until an agent that awaits an action, or to the end of the episode."""
        rows: list[Row] = []
        self.active_obs = {}
        while self.env.agents:
            agent = self.env.agent_selection
            observed, reward, terminated, truncated, info = self.env.last()
            if not (terminated or truncated):
                if self.steps == self.limit:
                    return rows + [self._truncate(each) for each in self.env.agents if each in self.started_agents]
                first = agent not in self.started_agents
                self.started_agents.add(agent)
                self.active_obs = {agent: observed}
                reward = 0.0 if first else float(reward)
                return [*rows, self._make_row(agent, observed, info, first=first, reward=reward)]
            if agent in self.started_agents:
                flags = {"is_bootstrap": True, "alive": not terminated}
                rows.append(self._make_row(agent, observed, info, reward=float(reward), **flags))
            self.env.step(None)
        return rows

    def _truncate(self, agent: Any) -> Row:
        """Return the last row of an agent at the limit of steps."""
        reward, info = float(self.env._cumulative_rewards[agent]), self.env.infos[agent]
        return self._make_row(agent, self.env.observe(agent), info, reward=reward, is_bootstrap=True)


def _make_episodic(env: Any, lane: int, limit: int | None) -> EpisodicEnv:
    """Return an AECEnv or a ParallelEnv with its episodes."""
    from pettingzoo import AECEnv

    return (TurnBasedEnv if isinstance(env, AECEnv) else SimultaneousEnv)(env, lane, limit)


def _make_env(config: EnvConfig) -> Any:
    """Return an environment inside its wrappers; one whose agents may act simultaneously is a ParallelEnv.

    Raises UnsupportedEnvironment if it is not an environment of PettingZoo.
    """
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils.conversions import aec_to_parallel

    render_args = {"render_mode": config.render_mode} if config.render_mode else {}
    with suppress_warnings():
        env = _make_unconverted(config.name, **config.args, **render_args)
        if isinstance(env, AECEnv) and env.metadata.get("is_parallelizable"):
            env = aec_to_parallel(env)
        if not isinstance(env, (AECEnv, ParallelEnv)):
            error = TypeError(f"{type(env).__name__} is not an environment of PettingZoo")
            raise UnsupportedEnvironment(describe_error(config.name, "cannot be opened", error))
        return apply_wrappers(env, config.wrappers)


def _make_unconverted(name: EnvName, **env_args: Any) -> Any:
    """Return an environment of an id, of `module:function`, or of a function; ids are preferred as a ParallelEnv."""
    import pettingzoo
    from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError

    if callable(name):
        return name(**env_args)
    if ":" in name:
        return load_callable(name)(**env_args)
    registries = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
    kind = next((kind for kind, known in registries.items() if name.replace("_v", "-v") in known), None)
    try:
        return pettingzoo.make(kind or "aec", name, **env_args)
    except FailedToImport as error:
        namespace = pettingzoo.spec(kind, name).namespace
        raise UnsupportedEnvironment(
            f'the environment {name!r} needs a package: {error.__cause__}; pip install "pettingzoo[{namespace}]"'
        ) from error
    except PettingZooRegistryError as error:
        known = list(dict.fromkeys([*registries["parallel"], *registries["aec"]]))
        family = [other for other in known if other.partition("/")[0] == name.partition("/")[0]]
        similar = get_close_matches(name, known, 3) or family or known
        raise UnsupportedEnvironment(
            f"env_name {name!r} is not an environment of PettingZoo; did you mean {', '.join(similar)}?"
        ) from error


def _select_action(env_actions: Any, i: int) -> Any:
    """Return action `i` of a batch in the environment's units."""
    if isinstance(env_actions, dict):
        return {key: value[i] for key, value in env_actions.items()}
    return tuple(value[i] for value in env_actions) if isinstance(env_actions, tuple) else env_actions[i]
