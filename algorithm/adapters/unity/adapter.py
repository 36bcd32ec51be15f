"""Unity: scenes in the editor or in built players, each in a process of its own, all stepped together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentStartError, UnsupportedEnvironment, derive_seed
from algorithm.adapters.unity.behavior import TEAM_SUFFIX, AgentSpecs, get_agent_name, get_role_name
from algorithm.adapters.unity.curriculum import SceneParameters
from algorithm.adapters.unity.lanes import Batch, LaneAssignment, TooManyAgents
from algorithm.adapters.unity.launch import LaunchConfig, PlayerExited, SceneTick
from algorithm.adapters.unity.statistics import StatisticsCollector
from algorithm.adapters.unity.supervised_scene import MAX_WAIT, SupervisedScene
from algorithm.rollout import Step
from algorithm.specs import Role

LOG = logging.getLogger(__name__)
CAMERA_CHANNELS = (1, 3)  # channels of what a camera shows

OnEpisodeEnd = Callable[[str, float], None]  # role and return


class UnityAdapter(Adapter):
    """Copies of one scene, each with any number of agents of any behaviors; each team of a behavior is a role.

    At first a role has in each environment one lane for each agent of its behavior that requests a decision together
    with the first one. A lane is added for each agent that finds no free lane; `max_agents` limits their number. `scene_parameters`
    holds the parameters of the scene, `on_episode_end` receives the return of each episode. Unity takes a seed only when it
    starts, so that every reset starts all players again.

    A copy that breaks is started again after a pause, while the others go on; its episodes are cut there and their last
    observations not known. In the editor that is no restart: Stop ends the episodes, and the next Play goes on.

    Raises EnvironmentStartError where a copy does not open at a reset, UnsupportedEnvironment for more agents than the
    limit and for cameras that show nothing.
    """

    def __init__(
        self,
        launch: LaunchConfig,
        n_envs: int,
        max_agents: Mapping[str, int] | int | None,
        scene_parameters: SceneParameters,
        on_episode_end: OnEpisodeEnd | None = None,
    ):
        self.launch, self.scene_parameters, self._on_episode_end = (
            launch,
            scene_parameters,
            on_episode_end or (lambda role, episode_return: None),
        )
        self.roles: dict[str, Role] = {}
        self._max_agents = max_agents
        self._scenes = [SupervisedScene(launch, number) for number in range(n_envs)]
        self._agent_specs: dict[str, AgentSpecs] = {}  # of each behavior that was seen
        self._behaviors: dict[str, str] = {}  # of each role
        self._agent_of: dict[str, str] = {}  # the agent of each role: one plays all teams of a behavior
        self._lanes: dict[str, list[LaneAssignment]] = {}  # of each role in each copy
        self._statistics = StatisticsCollector()
        self._ticks: dict[int, SceneTick] = {}  # of the copies that have answered
        self._is_gathering = False  # others have not
        self._pending_steps: dict[str, Step] | None = None  # what comes after final rows
        self._active_steps: dict[str, Step] = {}  # each role's rows that await a decision
        self._has_pending = False  # final rows were answered, so that `_asked` is known already and yet to be shown

    @property
    def shared_agents(self) -> Mapping[str, str]:
        return self._agent_of

    def reset(self, seed: int) -> dict[str, Step]:
        self._pending_steps, self._active_steps, self._is_gathering = None, {}, False
        for scene in self._scenes:
            self._forget_agents(scene)
            scene.start(derive_seed(seed, scene.number), self.scene_parameters.current)
        self._request_play()
        ticks: dict[int, SceneTick] = {}
        while len(ticks) < len(self._scenes):
            self._wait()
            for scene in self._scenes:
                message = scene.receive()
                if isinstance(message, PlayerExited):
                    self.close()
                    raise EnvironmentStartError(message.reason)
                if message is not None:
                    ticks[scene.number] = message
        return self._make_steps(ticks)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._has_pending = False
        if self._pending_steps is not None:
            self._active_steps, self._pending_steps = self._pending_steps, None
            self._has_pending = bool(self._active_steps)
        if self._has_pending or self._is_gathering:
            return
        for scene in self._scenes:
            if scene.awaits_actions:
                scene.send(self._select_actions(scene.number, actions), self.scene_parameters.current)
        self._active_steps, self._ticks = {}, {}

    def receive(self) -> dict[str, Step]:
        if self._has_pending:
            return self._active_steps
        self._is_gathering = not self._gather_ticks()
        return {} if self._is_gathering else self._make_steps(self._ticks)

    def statistics(self) -> dict[str, float]:
        lessons = {
            f"lesson/{name}": float(curriculum.index) for name, curriculum in self.scene_parameters.curricula.items()
        }
        return {**self._statistics.take(), **lessons}

    def close(self) -> None:
        for scene in self._scenes:
            scene.close()

    def _select_actions(self, number: int, actions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the agents of one copy do, by behavior."""
        return {
            self._behaviors[role]: self._lanes[role][number].order_actions(step.lane, actions[role])
            for role, step in self._active_steps.items()
            if self._lanes[role][number].active_lanes is not None
        }

    def _gather_ticks(self) -> bool:
        """Receive what each copy that was asked shows next, beside those that opened again; whether that is all.

        It is not where a copy takes long, or all of them are being started again: then a tick without news lets others
        have their turn, who may have been told to stop.
        """
        deadline = time.monotonic() + MAX_WAIT
        while time.monotonic() < deadline:
            for scene in self._scenes:
                scene.start_if_due(self.scene_parameters.current)
            self._wait()
            has_exited = False
            for scene in self._scenes:
                message = scene.receive()
                if isinstance(message, PlayerExited):
                    self._schedule_restart(scene, message)
                    has_exited = True
                elif message is not None:
                    self._ticks[scene.number] = message
            if (self._ticks or has_exited) and not any(scene.is_stepping for scene in self._scenes):
                return True
        return False

    def _wait(self) -> None:
        """Until something can be received, or is due; for a short while at most."""
        pipes = [scene.pipe for scene in self._scenes if scene.pipe is not None and not scene.awaits_actions]
        timeout = min((scene.wait_seconds for scene in self._scenes if not scene.awaits_actions), default=0.0)
        if pipes:
            wait(pipes, timeout)
        else:  # for which Windows does not wait
            time.sleep(timeout)

    def _schedule_restart(self, scene: SupervisedScene, player_exited: PlayerExited) -> None:
        self._forget_agents(scene)
        seconds = scene.schedule_restart(player_exited)
        if self.launch.path is None:
            LOG.warning(f"{player_exited.reason}; its episodes are cut")
            self._request_play()
            return
        self.restarts += 1
        which_env = f" (copy {scene.number} of {len(self._scenes)})" if len(self._scenes) > 1 else ""
        LOG.warning(
            f"{player_exited.reason}{which_env}; its episodes are cut, and it is started again in {seconds:g} seconds"
        )

    def _forget_agents(self, scene: SupervisedScene) -> None:
        for lanes in self._lanes.values():
            lanes[scene.number].forget_episodes()

    def _request_play(self) -> None:
        if self.launch.path is None:
            where = "" if self.launch.port is None else f" on port {self.launch.port}"
            LOG.warning(f"press Play in Unity: it is waited for{where}")

    def _make_steps(self, ticks: Mapping[int, SceneTick]) -> dict[str, Step]:
        """The final rows of all copies, if there are any; otherwise the rows that await a decision."""
        for tick in ticks.values():
            self._agent_specs |= tick.agent_specs
            self._statistics.add(tick.statistics)
        self._add_roles(ticks)
        finals, next_steps = {}, {}
        for role, behavior in self._behaviors.items():
            pairs = [
                self._assign_lanes(role, number, *tick.batches[behavior])
                for number, tick in sorted(ticks.items())
                if behavior in tick.batches
            ]
            if final_parts := [final for final, _ in pairs if final is not None]:
                finals[role] = _merge_steps(final_parts)
            if decision_parts := [rows for _, rows in pairs if rows is not None]:
                next_steps[role] = _merge_steps(decision_parts)
        if finals:
            self._pending_steps = next_steps
            return finals
        self._active_steps = next_steps
        return next_steps

    def _assign_lanes(
        self, role: str, number: int, decisions: Batch, terminals: Batch
    ) -> tuple[Step | None, Step | None]:
        lanes = self._lanes[role][number]
        try:
            final, next_step, returns = lanes(decisions, terminals)
        except TooManyAgents as error:
            raise self._make_limit_error(role) from error
        for episode_return in returns:
            self._on_episode_end(role, episode_return)
        return final, next_step

    def _add_roles(self, ticks: Mapping[int, SceneTick]) -> None:
        """Make a role of each behavior whose agents ask for the first time."""
        for behavior, agent_specs in self._agent_specs.items():
            decisions = [tick.batches[behavior][0] for tick in ticks.values() if behavior in tick.batches]
            count = max(map(len, decisions), default=0)
            if behavior in self._behaviors.values() or not count:
                continue
            role, agent = get_role_name(behavior), get_agent_name(behavior)
            for other, known_behavior in self._behaviors.items():
                same_behavior = TEAM_SUFFIX.sub("", known_behavior) == TEAM_SUFFIX.sub("", behavior)  # of one behavior
                if other == role or (self._agent_of[other] == agent and not same_behavior):
                    raise UnsupportedEnvironment(
                        f"the behaviors {known_behavior!r} and {behavior!r} would both be called {agent!r} here; "
                        "give one of them another name in Unity"
                    )
            self._check_cameras(agent_specs, decisions)
            limit = self._get_agent_limit(role)
            if limit is not None and count > limit:
                raise self._make_limit_error(role)
            self._behaviors[role], self._agent_of[role] = behavior, agent
            add = partial(self._add_lane, role)
            self._lanes[role] = [LaneAssignment(scene.number * count, count, add_lane=add) for scene in self._scenes]
            self.roles[role] = Role(count * len(self._scenes), agent_specs.obs_specs, agent_specs.action_spec)

    def _add_lane(self, role: str, n_lanes: int) -> int:
        """Add a lane to a role, in a copy that has `n_lanes` lanes, and return its number. Raise Crowded at the limit."""
        if n_lanes == self._get_agent_limit(role):
            raise TooManyAgents
        number = self.roles[role].lanes
        self.roles[role] = replace(self.roles[role], lanes=number + 1)
        return number

    def _get_agent_limit(self, role: str) -> int | None:
        """Return the limit of the agents of a role in one environment; None for no limit."""
        return self._max_agents.get(role) if isinstance(self._max_agents, Mapping) else self._max_agents

    def _make_limit_error(self, role: str) -> UnsupportedEnvironment:
        self.close()
        return UnsupportedEnvironment(
            f"more than {self._get_agent_limit(role)} agents of role {role!r} are in one scene at a time, which is the limit "
            "base_config.unity_args.agents: raise it, or set it to null for any number"
        )

    def _check_cameras(self, agent_specs: AgentSpecs, decisions: Sequence[Batch]) -> None:
        """Without graphics a camera shows one colour, for ever."""
        if not self.launch.no_graphics or self.launch.path is None:
            return
        for name, spec in agent_specs.obs_specs.items():
            camera = len(spec.shape) == 3 and spec.shape[0] in CAMERA_CHANNELS
            if camera and all(np.ptp(batch.obs[name]) == 0 for batch in decisions if len(batch)):
                self.close()
                raise UnsupportedEnvironment(
                    f"the sensor {name!r} shows nothing but one colour: cameras need graphics, and "
                    "base_config.unity_args.no_graphics is true; set it to false"
                )


def _merge_steps(steps: Sequence[Step]) -> Step:
    """Return the rows of several environments as one Step, in the order of their lanes."""
    if len(steps) == 1:
        return steps[0]
    parts = [step.to_arrays() for step in steps]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if (np.diff(arrays["lane"]) < 0).any():  # lanes that were added come after those of all copies
        order = np.argsort(arrays["lane"])
        arrays = {name: value[order] for name, value in arrays.items()}
    return Step.from_arrays(arrays)
