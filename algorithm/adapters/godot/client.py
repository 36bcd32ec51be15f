"""The trainer's side of one Godot scene: a server for the protocol of Godot RL Agents (0.3 to 0.8).

A message is its length, 4 bytes, little-endian, and JSON. The scene connects and is asked for its agents (`env_info`):
their policies, observations and actions. Then it answers `reset`, and each `action`, with all agents. An agent that is
done has started its next episode: its observation is the first one of that. Besides, a scene may send `truncated`,
whether an agent that is done was interrupted, and `final_obs`, its last observation or null.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithm.adapters.adapter import EnvConfig, EnvironmentCrashed, EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.curriculum import Value
from algorithm.adapters.scenes.client import PlayerQuit, SceneClient
from algorithm.adapters.scenes.player import PlayerProcess
from algorithm.adapters.scenes.ports import LOOPBACK, is_taken, make_port_error
from algorithm.adapters.scenes.scene import Batch, SceneTick
from algorithm.adapters.spaces import AgentSpaces
from algorithm.program import DEFAULT_ROLE
from algorithm.specs import Role

VERSION = {"major_version": "0", "minor_version": "7"}  # of the protocol
MAX_MESSAGE_BYTES = 64 * 2**20  # largest size of a message
READ_BYTES = 2**18  # largest number of bytes that are read at once
SHARED_POLICY = "shared_policy"  # of agents whose scene names no policy
NOT_FINITE = re.compile(r"[\[:,\s]-?(1\.#)?(nan|inf)", re.IGNORECASE)  # in text that is not JSON
SPACES = ("observation_space", "action_space")  # in the description of a scene
IMAGE = "2d"  # part of the name of an image, whose bytes are sent as text


class GodotClient(SceneClient):
    """A client of one Godot scene."""

    def __init__(
        self,
        program: Path | None,
        *,
        port: int,
        start_limit: float | None,
        limit: float,
        arguments: Sequence[str] = (),
        time_limit: int | None = None,
        ignored: Collection[str] = (),
        log: Path | None = None,
        on_listening: Callable[[], object] = lambda: None,
    ):
        """Start a scene, or wait for the editor, and exchange the first messages.

        Args:
            program: Exported scene or engine, started with `arguments` and `--port=`; None for the editor.
            port: Port to listen on; 0 for any free port, which only a program can be given.
            start_limit: Seconds within which the scene must connect; None for no limit.
            limit: Seconds within which the scene must answer each message.
            arguments: Arguments of the program.
            time_limit: Steps after which the end of an episode was a truncation, if the scene does not say it.
            ignored: Names of observations to leave out.
            log: File for what the scene prints, whose last lines are quoted in errors.
            on_listening: Called when the scene can connect.

        Raises:
            EnvironmentStartError: If the scene does not start, or has spaces that are not supported.
        """
        super().__init__(program, limit)
        self._connection: socket.socket | None = None
        self._is_closed = self._has_ended = False
        self._received = bytearray()
        self._time_limit = time_limit
        if is_taken(port):
            raise make_port_error(port)
        self._listener = socket.create_server((LOOPBACK, port))
        self.port: int = self._listener.getsockname()[1]
        on_listening()
        with self.convert_start_errors():
            if program:
                command = [str(program.absolute()), *arguments, f"--port={self.port}"]
                self._process = PlayerProcess(command, log, records_output=True)
            self.receive(start_limit, "did not connect")
            self._policies = _read_policies(self.receive(limit, "did not describe its agents"), ignored)
            self._steps = np.zeros(sum(len(policy.agents) for policy in self._policies), np.int64)  # of each episode

    def reset(self) -> SceneTick:
        reply = self._exchange({"type": "reset"})
        self._steps[:] = 0
        tick = self._read_tick(reply, is_reset=True)
        tick.roles = {policy.name: policy.role for policy in self._policies}
        return tick

    def step(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value] | None = None) -> SceneTick:
        rows: list[Any] = [None] * len(self._steps)
        for policy in self._policies:
            values = policy.role.action_spec.to_env_units(actions[policy.name])
            for row, agent in enumerate(policy.agents):
                rows[agent] = {name: value[row].tolist() for name, value in values.items()}
        self._steps += 1
        return self._read_tick(self._exchange({"type": "action", "action": rows}))

    def disconnect(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):
            self._send({"type": "close"})
        if self._connection:
            self._connection.close()
        self._listener.close()

    def poll(self, seconds: float) -> Any:
        """Return the scene's next message; the first one, None, is its connection."""
        try:
            if self._connection is None:
                self._listener.settimeout(seconds)
                self._connection, _ = self._listener.accept()
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._send({"type": "handshake", **VERSION})
                self._send({"type": "env_info"})
                return None
            self._connection.settimeout(seconds)
            size = int.from_bytes(self._read(4), "little")
            if size > MAX_MESSAGE_BYTES:
                raise EnvironmentCrashed(f"sent a message of {size:,} bytes; at most {MAX_MESSAGE_BYTES:,} are read")
            text = self._read(4 + size)[4:].decode()
            del self._received[: 4 + size]
        except TimeoutError:
            raise Empty from None
        except ConnectionError:
            if self._process is None:
                raise PlayerQuit("quit") from None  # Stop was pressed
            self._has_ended = True
            time.sleep(seconds)  # its process may be about to exit, which is reported then
            raise Empty from None
        return _parse(text)

    @property
    def is_disconnected(self) -> bool:
        return self._has_ended

    def _read(self, size: int) -> bytes:
        """Return the first `size` bytes of the next message, which stay in the buffer until it is complete."""
        assert self._connection is not None, "a connection"
        while len(self._received) < size:
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the scene closed the connection")
            self._received += data
        return bytes(self._received[:size])

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._connection:
            text = json.dumps(message).encode()
            self._connection.settimeout(self._limit)
            self._connection.sendall(len(text).to_bytes(4, "little") + text)

    def _exchange(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._is_closed:
            raise EnvironmentCrashed(f"{self.name} is not connected any more")
        with self.convert_errors():
            with suppress(OSError):  # `receive` reports how the scene ended
                self._send(message)
            return self.receive(self._limit, "did not answer")

    def _read_tick(self, reply: Mapping[str, Any], is_reset: bool = False) -> SceneTick:
        """Return the agents of a message, which all await a decision, and those whose episode ended."""
        with self.convert_errors():
            n = len(self._steps)
            obs = reply["obs"]
            reward = np.zeros(n, np.float32) if is_reset else np.array(reply["reward"], np.float32)
            done = np.zeros(n, bool) if is_reset else np.array(reply["done"], bool)
            if not len(obs) == len(reward) == len(done) == n:
                raise EnvironmentCrashed(f"sent {len(obs)} observations of {n} agents")
            final_obs = reply.get("final_obs") or [None] * n
            interrupted = done & self._find_interrupted(reply)
            self._steps[done] = 0
            return SceneTick(
                {
                    policy.name: (
                        policy.make_batch(policy.agents, obs, np.where(done, 0, reward), interrupted),
                        policy.make_batch(
                            policy.agents[done[policy.agents]],
                            [first if last is None else last for first, last in zip(obs, final_obs, strict=True)],
                            reward,
                            interrupted,
                            np.array([last is not None for last in final_obs]),
                        ),
                    )
                    for policy in self._policies
                }
            )

    def _find_interrupted(self, reply: Mapping[str, Any]) -> np.ndarray:
        """Return which agents [n] bool were interrupted if they are done, by the message or by the limit of steps."""
        if "truncated" in reply:
            return np.array(reply["truncated"], bool)
        if self._time_limit is None:
            return np.zeros(len(self._steps), bool)
        return self._steps >= self._time_limit


class _Policy:
    """The agents of one policy, their role and the conversion of their observations."""

    def __init__(self, name: str, agents: np.ndarray, obs_space: Mapping[str, Any], action_space: Mapping[str, Any]):
        self.name, self.agents = name, agents
        self._obs_space = {key: _make_obs_space(key, space) for key, space in obs_space.items()}
        self._action_space = {key: _make_action_space(key, space) for key, space in action_space.items()}

    def read_spaces(self, ignored: Collection[str]) -> None:
        """Find the role of one agent. Raises UnsupportedEnvironment for spaces that are not supported."""
        config = EnvConfig(name=self.name, ignore_observations=ignored)
        obs_space, action_space = (spaces.Dict(list(each.items())) for each in (self._obs_space, self._action_space))
        self._spaces = AgentSpaces(obs_space, action_space, config, lambda: ())
        self.role: Role = self._spaces.role

    def make_batch(
        self,
        agents: np.ndarray,
        obs: Sequence[Mapping[str, Any]],
        reward: np.ndarray,
        interrupted: np.ndarray,
        has_obs: np.ndarray | None = None,
    ) -> Batch:
        """Return agents of this policy, given the values of all agents of the scene."""
        return Batch(
            agent=agents,
            obs=self._spaces(self._decode([obs[agent] for agent in agents]), ()),
            reward=reward[agents],
            interrupted=interrupted[agents],
            group=np.zeros(len(agents), np.int64),
            has_obs=None if has_obs is None else has_obs[agents],
        )

    def _decode(self, obs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the observations [n, ...] of agents in their spaces. Raises EnvironmentCrashed for other values."""
        decoded = {}
        for name, space in self._obs_space.items():
            size = prod(space.shape or ())
            if not all(isinstance(one, Mapping) and name in one for one in obs):
                raise EnvironmentCrashed(f"sent no observation {name!r} of an agent of {self.name!r}")
            values = [one[name] for one in obs]
            if space.dtype == np.uint8:
                if not all(isinstance(value, str) for value in values):
                    raise EnvironmentCrashed(
                        f"sent {name!r} as numbers, although {IMAGE!r} in a name stands for the bytes of an image, as "
                        "text: rename the observation"
                    )
                values = [_decode_bytes(text, size) for text in values]
            if isinstance(space, spaces.Discrete) and np.any(np.mod(values, 1)):
                raise EnvironmentCrashed(f"sent {name!r} as {values}, although it is a whole number")
            array = np.array(values, space.dtype)
            if array.size != size * len(obs):
                raise EnvironmentCrashed(
                    f"sent {array.size} values as {name!r} of {len(obs)} agents of {self.name!r}, not {size} of each"
                )
            decoded[name] = array.reshape(len(obs), *(space.shape or ()))
        return decoded


def _read_policies(info: Mapping[str, Any], ignored: Collection[str]) -> list[_Policy]:
    """Return the policies of a scene, given its description.

    Raises:
        EnvironmentStartError: If there is no agent, or the agents of a policy have different spaces.
        UnsupportedEnvironment: If spaces are not supported.
    """
    n = int(info["n_agents"])
    given = info.get("agent_policy_names") or [SHARED_POLICY] * n
    if not n or len(given) != n:
        raise EnvironmentStartError(f"has {n} agents with {len(given)} policies: put agents into the group AGENT")
    if not all(isinstance(name, str) for name in given) or {SHARED_POLICY, DEFAULT_ROLE} <= {*given}:
        raise EnvironmentStartError(
            f"has the policies {', '.join(map(repr, dict.fromkeys(given)))}: give each a name, {SHARED_POLICY!r} or "
            f"{DEFAULT_ROLE!r} but not both"
        )
    names = [DEFAULT_ROLE if name == SHARED_POLICY else name for name in given]
    listed = [info[key] if isinstance(info[key], list) else [info[key]] * n for key in SPACES]
    policies = []
    for name in dict.fromkeys(names):
        agents = np.array([agent for agent in range(n) if names[agent] == name])
        first = [one[agents[0]] for one in listed]
        for agent in agents:
            if [one[agent] for one in listed] != first:
                raise EnvironmentStartError(
                    f"has agents of the policy {name!r} with different spaces: give them other values of policy_name"
                )
        try:
            policy = _Policy(name, agents, *first)
            policy.read_spaces(ignored)
        except UnsupportedEnvironment as error:
            raise EnvironmentStartError(f"has a policy {name!r} that cannot be trained: {error}") from error
        policies.append(policy)
    return policies


def _make_obs_space(name: str, space: Mapping[str, Any]) -> spaces.Space:
    """Return an observation space. Raises UnsupportedEnvironment for another one than box and discrete."""
    kind = space.get("space")
    if kind == "discrete":
        return spaces.Discrete(int(space["size"]))
    if kind != "box":
        raise UnsupportedEnvironment(f"observation {name!r} is {kind!r}; supported are 'box' and 'discrete'")
    shape = tuple(int(size) for size in np.ravel(space["size"]))
    if IMAGE in name:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _make_action_space(name: str, space: Mapping[str, Any]) -> spaces.Space:
    """Return an action space. Raises UnsupportedEnvironment for another one than continuous and discrete."""
    kind, size = space.get("action_type"), int(space["size"])
    if kind == "continuous":
        return spaces.Box(-1, 1, (size,), np.float32)
    if kind != "discrete":
        raise UnsupportedEnvironment(f"action {name!r} is {kind!r}; supported are 'continuous' and 'discrete'")
    return spaces.Discrete(size)


def _decode_bytes(text: str, size: int) -> np.ndarray:
    """Return the bytes of an image in hexadecimal digits, two for each, or in base64."""
    data = bytes.fromhex(text) if len(text) == 2 * size else base64.b64decode(text)
    return np.frombuffer(data, np.uint8)


def _parse(text: str) -> Any:
    """Return the value of JSON. Raises EnvironmentCrashed for NaN and infinity, which Godot writes as names."""

    def refuse(name: str) -> None:
        raise EnvironmentCrashed(f"sent {name}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        if NOT_FINITE.search(text):
            raise EnvironmentCrashed("sent NaN or infinity") from error
        raise
