"""Scenes of a game engine, in its editor or in built players, each in a separate process, all stepped together."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import ClassVar

import numpy as np

from algorithm.adapters.adapter import (
    Adapter,
    EnvConfig,
    EnvironmentStartError,
    SimulatorError,
    StartCheck,
    UnsupportedEnvironment,
    derive_seed,
)
from algorithm.adapters.curriculum import EnvironmentParameters, Value
from algorithm.adapters.process_setup import PROCESSES, end_with_parent, prepare_worker, start_garbage_collection
from algorithm.adapters.scenes.client import PlayerQuit
from algorithm.adapters.scenes.launch import LaunchConfig
from algorithm.adapters.scenes.ports import check_ports
from algorithm.adapters.scenes.scene import (
    UNFIT_FOR_FILES,
    Batch,
    LaneAssignment,
    PlayerExited,
    SceneTick,
    StatisticsCollector,
)
from algorithm.rollout import Step, merge_steps
from algorithm.specs import Role

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between a failure and the next start, doubled after each failure
STABLE_TICKS = 10  # ticks after which the pause is `FIRST_PAUSE` again
MAX_WAIT = 0.5  # seconds of one wait
CAMERA_CHANNELS = (1, 3)  # numbers of channels of a camera's image
NO_NAMES = ("", ".", "..")  # of files
GRACE_SECONDS = 10.0  # seconds that a process has to answer or end, in addition to the limit of its scene

LOG = logging.getLogger(__name__)


class SceneAdapter(Adapter):
    """An adapter of the scenes of an engine, each with any number of agents of any behaviors (see `scene`).

    A role starts with one lane, in each environment, for each agent of its behavior that requests a decision together
    with the first one. A lane is added for each agent that finds no free lane, up to the limit `agents` of the section.

    A scene receives a seed only when it starts, so each reset restarts all players. A player that fails starts again
    after a pause while the others continue; its episodes are truncated without last observations. Stop in the editor
    does the same, without counting as a restart.

    Raises EnvironmentStartError if an environment does not open at a reset, and UnsupportedEnvironment for more agents
    than the limit, and for roles that a subclass does not support.
    """

    launch_config: ClassVar[type[LaunchConfig]]
    needs_name: ClassVar[bool] = False
    starts_programs: ClassVar[bool] = True

    def __init__(self, config: EnvConfig):
        self.launch = self.launch_config(config)
        self.roles: dict[str, Role] = {}
        self._parameters = config.parameters or EnvironmentParameters({})
        self._on_episode_end = config.on_episode_end or (lambda role, episode_return: None)
        self._max_agents: Mapping[str, int] | int | None = config.section.get("agents")  # of a role in one environment
        self._scenes = [SceneProcess(self.launch, number) for number in range(config.n_envs)]
        self._agent_roles: dict[str, Role] = {}  # of one agent of each behavior that has appeared
        self._behaviors: dict[str, str] = {}  # of each role
        self._agent_of: dict[str, str] = {}  # the agent of each role: one for all teams of a behavior
        self._lanes: dict[str, list[LaneAssignment]] = {}  # of each role in each environment
        self._statistics = StatisticsCollector()
        self._ticks: dict[int, SceneTick] = {}  # of the scenes that have sent a tick since the last actions
        self._is_gathering = False  # whether ticks of other scenes are still missing
        self._ready_steps: deque[dict[str, Step]] = deque()  # what `receive` returns before the scenes step again
        self._active_steps: dict[str, Step] = {}  # of each role: the rows that await a decision

    @classmethod
    def count_evaluation_envs(cls, config: EnvConfig, episodes: int) -> int:
        return 1

    @classmethod
    def find_evaluation_obstacle(cls, config: EnvConfig) -> str | None:
        launch = cls.launch_config
        return f"there is one {launch.engine} editor" if launch(config).path is None else None

    @classmethod
    def list_start_checks(cls, config: EnvConfig | None) -> Sequence[StartCheck]:
        engine = cls.launch_config
        if config is None:
            ports = partial(check_ports, [engine.editor_port], engine.port_advice)
            return [StartCheck(name=f"port of the {engine.engine} editor", run=ports)]
        launch = engine(config)
        if launch.path is None:
            return [StartCheck(name="ports", run=partial(check_ports, [launch.get_port(0)], engine.port_advice))]
        player = StartCheck(name="player", run=lambda: str(launch.find_program()))
        if launch.port is None:
            return [player]
        advice = f"give another base_config.{engine.section}.base_port, or null for any free ports"
        numbers = range(launch.port, launch.port + config.n_envs + 1)  # one more for evaluation
        return [player, StartCheck(name="ports", run=partial(check_ports, numbers, advice))]

    @property
    def shared_agents(self) -> Mapping[str, str]:
        return self._agent_of

    def reset(self, seed: int) -> dict[str, Step]:
        self._is_gathering = False
        for scene in self._scenes:
            self._forget_agents(scene)
            scene.start(derive_seed(seed, scene.number), self._parameters.current)
        ticks: dict[int, SceneTick] = {}
        while len(ticks) < len(self._scenes):
            for scene, message in self._receive_messages():
                if isinstance(message, PlayerExited):
                    self.close()
                    raise EnvironmentStartError(message.reason)
                ticks[scene.number] = message
        self._ready_steps = self._make_steps(ticks)
        return self._ready_steps.popleft()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        if self._ready_steps or self._is_gathering:
            return
        for scene in self._scenes:
            if scene.awaits_actions:
                scene.send(self._select_actions(scene.number, actions), self._parameters.current)
        self._ticks = {}

    def receive(self) -> dict[str, Step]:
        if not self._ready_steps:
            self._is_gathering = not self._gather_ticks()
            if self._is_gathering:
                return {}
            self._ready_steps = self._make_steps(self._ticks)
        return self._ready_steps.popleft()

    def statistics(self) -> dict[str, float]:
        lessons = {f"lesson/{name}": float(one.index) for name, one in self._parameters.curricula.items()}
        return {**self._statistics.take(), **lessons}

    def close(self) -> None:
        for scene in self._scenes:
            scene.disconnect()  # so that all of them end at the same time
        for scene in self._scenes:
            scene.close()

    def _select_actions(self, number: int, actions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the actions for the agents of environment `number`, by behavior."""
        return {
            self._behaviors[role]: self._lanes[role][number].order_actions(step.lane, actions[role])
            for role, step in self._active_steps.items()
            if self._lanes[role][number].active_lanes is not None
        }

    def _gather_ticks(self) -> bool:
        """Receive the next tick of each scene that executes actions or has opened; return whether all have arrived.

        If not, because a scene takes long or all start again, `receive` returns no rows, so that the caller can stop.
        """
        deadline = time.monotonic() + MAX_WAIT
        while time.monotonic() < deadline:
            for scene in self._scenes:
                scene.start_if_due(self._parameters.current)
            has_exited = False
            for scene, message in self._receive_messages():
                if isinstance(message, PlayerExited):
                    self._schedule_restart(scene, message)
                    has_exited = True
                else:
                    self._ticks[scene.number] = message
            if (self._ticks or has_exited) and not any(scene.is_stepping for scene in self._scenes):
                return True
        return False

    def _receive_messages(self) -> Iterator[tuple[SceneProcess, SceneTick | PlayerExited]]:
        """Wait for messages, at most `MAX_WAIT` seconds and until a scene needs a call, and yield them."""
        pipes = [scene.pipe for scene in self._scenes if scene.pipe is not None and not scene.awaits_actions]
        timeout = min((scene.wait_seconds for scene in self._scenes if not scene.awaits_actions), default=0.0)
        if pipes:
            wait(pipes, timeout)
        else:  # without pipes, `wait` returns at once on Windows
            time.sleep(timeout)
        for scene in self._scenes:
            if (message := scene.receive()) is not None:
                yield scene, message

    def _schedule_restart(self, scene: SceneProcess, player_exited: PlayerExited) -> None:
        self._forget_agents(scene)
        seconds = scene.schedule_restart(player_exited)
        if self.launch.path is None:
            LOG.warning(f"{player_exited.reason}; its episodes are truncated")
            return
        self.restarts, self.last_error = self.restarts + 1, player_exited.reason
        which_env = f" (environment {scene.number} of {len(self._scenes)})" if len(self._scenes) > 1 else ""
        LOG.warning(
            f"{player_exited.reason}{which_env}; its episodes are truncated, and it starts again in {seconds:g} seconds"
        )

    def _forget_agents(self, scene: SceneProcess) -> None:
        for lanes in self._lanes.values():
            lanes[scene.number].forget_episodes()

    def _make_steps(self, ticks: Mapping[int, SceneTick]) -> deque[dict[str, Step]]:
        """Return the final rows of lanes that await a decision again, if there are any, and then all other rows."""
        for tick in ticks.values():
            self._agent_roles |= tick.roles
            self._statistics.add(tick.statistics)
        self._add_roles(ticks)
        finals, next_steps = {}, {}
        for role, behavior in self._behaviors.items():
            final_parts, decision_parts = [], []
            for number, tick in sorted(ticks.items()):
                if behavior in tick.batches:
                    final, next_step, returns = self._lanes[role][number](*tick.batches[behavior])
                    final_parts += [] if final is None else [final]
                    decision_parts += [] if next_step is None else [next_step]
                    for episode_return in returns:
                        self._on_episode_end(role, episode_return)
            earlier, together = _split_finals(final_parts, decision_parts)
            if earlier:
                finals[role] = merge_steps(earlier)
            if together:
                next_steps[role] = merge_steps(together)
        self._active_steps = next_steps
        return deque([finals, next_steps] if finals and next_steps else [finals or next_steps])

    def _add_roles(self, ticks: Mapping[int, SceneTick]) -> None:
        """Add a role for each behavior whose agents request decisions for the first time."""
        for behavior, agent_role in self._agent_roles.items():
            decisions = [tick.batches[behavior][0] for tick in ticks.values() if behavior in tick.batches]
            count = max(map(len, decisions), default=0)
            if behavior in self._behaviors.values() or not count:
                continue
            brain, team = self.split_team(behavior)
            agent = UNFIT_FOR_FILES.sub("_", brain)
            role = agent + team
            if agent in NO_NAMES:
                raise UnsupportedEnvironment(
                    f"a file cannot have the name {behavior!r}: give another in {self.launch.engine}"
                )
            for other, known_behavior in self._behaviors.items():
                is_same_brain = self.split_team(known_behavior)[0] == brain
                if other == role or (self._agent_of[other] == agent and not is_same_brain):
                    raise UnsupportedEnvironment(
                        f"the behaviors {known_behavior!r} and {behavior!r} would both have the agent name {agent!r}; "
                        f"give one of them another name in {self.launch.engine}"
                    )
            self._check_cameras(agent_role, decisions)
            self._check_agent_limit(role, count)
            self._behaviors[role], self._agent_of[role] = behavior, agent
            add = partial(self._add_lane, role)
            self._lanes[role] = [LaneAssignment(scene.number * count, count, add) for scene in self._scenes]
            self.roles[role] = replace(agent_role, lanes=count * len(self._scenes))

    def split_team(self, behavior: str) -> tuple[str, str]:
        """Return the name that all teams of a behavior share, and what distinguishes the role of this team."""
        return behavior, ""

    def _check_cameras(self, agent_role: Role, decisions: Sequence[Batch]) -> None:
        """Raise UnsupportedEnvironment for a camera whose image has a single color, as without graphics."""
        if not self.launch.no_graphics or self.launch.path is None:
            return
        for name, spec in agent_role.obs_specs.items():
            is_camera = len(spec.shape) == 3 and spec.shape[0] in CAMERA_CHANNELS
            if is_camera and all(np.ptp(batch.obs[name]) == 0 for batch in decisions if len(batch)):
                self.close()
                raise UnsupportedEnvironment(
                    f"the sensor {name!r} shows a single color: cameras need graphics, and "
                    f"base_config.{self.section}.no_graphics is true; set it to false"
                )

    def _add_lane(self, role: str, n_lanes: int) -> int:
        """Add a lane to a role, in an environment with `n_lanes` lanes; return its number."""
        self._check_agent_limit(role, n_lanes + 1)
        number = self.roles[role].lanes
        self.roles[role] = replace(self.roles[role], lanes=number + 1)
        return number

    def _check_agent_limit(self, role: str, count: int) -> None:
        """Raise UnsupportedEnvironment if `count` agents of a role are more than one scene may have."""
        limit = self._max_agents.get(role) if isinstance(self._max_agents, Mapping) else self._max_agents
        if limit is not None and count > limit:
            self.close()
            raise UnsupportedEnvironment(
                f"more than {limit} agents of role {role!r} are in one scene at a time, which is the limit "
                f"base_config.{self.launch.section}.agents: raise it, or set it to null for any number"
            )


class SceneProcess:
    """A scene in a separate process.

    The scene is in one of four states: it awaits actions (`awaits_actions`), executes them (`is_stepping`), opens, or
    pauses after a failure. `pipe` becomes readable when `receive` has a message; it is None during a pause.
    """

    def __init__(self, launch: LaunchConfig, number: int):
        self.launch, self.number = launch, number
        self.pipe: Connection | None = None
        self.awaits_actions = self.is_stepping = False
        self.failures = 0
        self._process: BaseProcess | None = None
        self._pause, self._ticks = FIRST_PAUSE, 0
        self._due: float | None = None  # the time at which it starts again or fails; None for no limit
        self._sent_parameters: dict[str, Value] = {}

    def start(self, seed: int, parameters: Mapping[str, Value]) -> None:
        """Start to open the scene; `receive` returns its first tick, or why it did not open."""
        self.close()
        self._seed, self._sent_parameters, self._ticks = seed, dict(parameters), 0
        self.pipe, child_pipe = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=run_scene, args=(child_pipe, self.launch, self.number, seed, self._sent_parameters), daemon=True
        )
        self._process.start()
        child_pipe.close()
        # There is no time limit for the user to press Play in the editor.
        self._due = None if self.launch.path is None else self._get_deadline(3)

    def start_if_due(self, parameters: Mapping[str, Value]) -> None:
        """Open the scene again if the pause after a failure is over."""
        if self.pipe is None and self._is_due():
            self.start(derive_seed(self._seed, self.failures), parameters)

    @property
    def wait_seconds(self) -> float:
        """Return the seconds after which the scene needs a call even if no message arrives."""
        return MAX_WAIT if self._due is None else min(MAX_WAIT, max(0.0, self._due - time.monotonic()))

    def send(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> None:
        """Send {behavior: actions [n, size]}, and those environment parameters that have changed."""
        changed = {
            name: value
            for name, value in parameters.items()
            if name not in self._sent_parameters or self._sent_parameters[name] != value
        }
        self._sent_parameters |= changed
        self.awaits_actions, self.is_stepping = False, True
        self._due = self._get_deadline(1)
        with suppress(OSError):  # `receive` returns why the process ended
            self.pipe.send((actions, changed))  # type: ignore[union-attr]

    def receive(self) -> SceneTick | PlayerExited | None:
        """Return the next tick, or why the scene failed; None if the scene has time left to answer."""
        if self.pipe is None:
            return None
        message: SceneTick | PlayerExited | None
        try:
            if self.pipe.poll():
                message = self.pipe.recv()
            elif not self._is_due():
                return None
            else:
                message = PlayerExited(f"{self.launch.name} did not answer in {self.launch.timeout:g} seconds")
        except (EOFError, OSError):
            message = PlayerExited(f"the process of {self.launch.name} ended without a message")
        if message is None and self.launch.path is None:
            self._request_play()
        if isinstance(message, SceneTick):
            self.awaits_actions, self.is_stepping = True, False
            self._ticks += 1
            if self._ticks >= STABLE_TICKS:
                self._pause = FIRST_PAUSE
        return message

    def schedule_restart(self, player_exited: PlayerExited) -> float:
        """Close the scene and return the seconds until it opens again."""
        self.close()
        self.failures += 1
        seconds, self._pause = (
            (0.0, FIRST_PAUSE) if player_exited.stopped else (self._pause, min(2 * self._pause, LONGEST_PAUSE))
        )
        self._due = time.monotonic() + seconds
        return seconds

    def disconnect(self) -> None:
        """Close the pipe of the scene, whose process then ends its player and itself. A second call does nothing."""
        self.awaits_actions = self.is_stepping = False
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    def close(self) -> None:
        """Close the scene and end its process. A second call does nothing."""
        self.disconnect()
        if self._process is not None:
            if self._ticks:
                self._process.join(GRACE_SECONDS)
            for stop in (self._process.terminate, self._process.kill):
                if self._process.is_alive():
                    stop()
                    self._process.join(GRACE_SECONDS)
            self._process.close()
            self._process = None

    def _request_play(self) -> None:
        engine, port = self.launch.engine, self.launch.get_port(0)
        LOG.warning(f"Waiting for {engine} on port {port}: press Play in the editor{self.launch.editor_note}")

    def _is_due(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _get_deadline(self, n_timeouts: int) -> float:
        return time.monotonic() + n_timeouts * self.launch.timeout + GRACE_SECONDS


def run_scene(pipe: Connection, launch: LaunchConfig, number: int, seed: int, parameters: Mapping[str, Value]) -> None:
    """Open a scene, in the process of the scene, and step it until the other end of `pipe` is closed.

    Sends None when the player can connect, a SceneTick after the start and for each ({behavior: actions [n, size]},
    changed parameters) that it receives, or a PlayerExited if the scene fails, which ends the process.
    """
    prepare_worker()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the player ends too
    end_with_parent()  # the watchdog then ends the player
    start_garbage_collection()
    try:
        with launch.open(number, seed, parameters, partial(pipe.send, None)) as client:
            pipe.send(client.reset())
            while True:
                pipe.send(client.step(*pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other end is closed
    except Exception as error:  # a scene may fail with any error
        reason = str(error) if isinstance(error, SimulatorError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            pipe.send(PlayerExited(" ".join(reason.split()), isinstance(error, PlayerQuit)))


def _split_finals(finals: Sequence[Step], decisions: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """Return the final rows of lanes that also await a decision, and the other final rows with the decisions.

    The rows of one tick are thus in one Step, unless a lane has two of them.
    """
    decided = np.concatenate([np.zeros(0, np.int64), *(part.lane for part in decisions)])
    split = [(final, np.isin(final.lane, decided)) for final in finals]
    earlier = [final.take(again) for final, again in split if again.any()]
    return earlier, [*decisions, *(final.take(~again) for final, again in split if not again.all())]
