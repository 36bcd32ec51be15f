"""The protocol from Unity's side: it is the client, and asks the trainer what to do by telling it what happened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithm.adapters.unity import compat
from tests.unity_player import channels
from tests.unity_player.faults import Faults, Quit
from tests.unity_player.scene import Action, Behavior, News, Sensor, Task

api = compat.load()

CONNECT = 20.0  # seconds in which the trainer has to be there
VERSION = "1.5.0"


class Player:
    """Plays a task until the trainer says quit or goes away."""

    def __init__(self, port: int, task: Task, faults: Faults, record: Path | None = None):
        self._task = task
        self._faults = faults
        self._record = record
        self._told: set[str] = set()  # behaviors whose parameters the trainer has
        self._samplers: dict[str, tuple[str, list[float]]] = {}
        self._templates = {name: _template(behavior) for name, behavior in task.behaviors.items()}
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        channel = api.grpc.insecure_channel(f"127.0.0.1:{port}", [*options, ("grpc.enable_http_proxy", 0)])
        self._exchange = api.UnityToExternalProtoStub(channel).Exchange

    def play(self) -> None:
        """Returns when the trainer said quit; raises grpc.RpcError where it went away."""
        if self._faults.kind == "never":
            time.sleep(CONNECT)
            return
        self._say(self._introduction(), wait_for_ready=True, timeout=CONNECT)
        if self._faults.kind == "handshake":
            os._exit(3)
        answer = self._say(api.UnityMessageProto())
        tick = 0
        while answer.header.status == 200:
            try:
                self._faults.before_tick(tick)
            except Quit:
                goodbye = api.UnityMessageProto()
                goodbye.header.status = 400
                self._exchange(goodbye)
                return
            answer = self._say(self._message(self._react(answer.unity_input.rl_input), tick))
            tick += 1

    def _say(self, message: Any, **how: Any) -> Any:
        message.header.status = 200
        return self._exchange(message, **how)

    def _introduction(self) -> Any:
        message = api.UnityMessageProto()
        start = message.unity_output.rl_initialization_output
        start.name = type(self._task).__name__
        start.communication_version = "2.0.0" if self._faults.kind == "version" else VERSION
        start.package_version = "1.0.0" if self._faults.kind == "old" else "3.0.0"
        start.capabilities.CopyFrom(api.UnityEnvironment._get_capabilities_proto())
        start.capabilities.hybridActions = self._faults.kind != "old"
        return message

    def _react(self, told: Any) -> dict[str, list[News]]:
        """What the task says to the trainer's actions, or to its reset."""
        reset = told.command == api.RESET
        if told.side_channel:
            self._hear(channels.read(told.side_channel))
        if reset:
            for name, (kind, numbers) in self._samplers.items():
                self._task.parameters[name] = channels.sample(kind, numbers, self._task.rng)
            self._note({"reset": self._task.parameters})
            return self._remember(self._task.reset())
        actions = {
            name: {
                agent: Action(list(action.continuous_actions), list(action.discrete_actions))
                for agent, action in zip(self._waiting.get(name, ()), given.value, strict=True)
            }
            for name, given in told.agent_actions.items()
        }
        return self._remember(self._task.step(actions))

    def _remember(self, news: dict[str, list[News]]) -> dict[str, list[News]]:
        self._waiting = {name: [each.agent for each in agents if not each.done] for name, agents in news.items()}
        return news

    def _hear(self, settings: list[tuple[str, str, list[float]]]) -> None:
        for kind, name, numbers in settings:
            self._note({kind: [name, *numbers]})
            if kind != "engine":
                self._samplers[name] = (kind, numbers)
                if kind == "number":
                    self._task.parameters[name] = numbers[0]

    def _note(self, line: Mapping[str, Any]) -> None:
        if self._record:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _message(self, news: dict[str, list[News]], tick: int) -> Any:
        message = api.UnityMessageProto()
        output = message.unity_output
        for name, agents in news.items():
            if agents and name not in self._told:
                self._told.add(name)
                self._describe(name, output.rl_initialization_output.brain_parameters.add())
            self._faults.spoil(tick, agents)
            infos = output.rl_output.agentInfos[name].value
            for each in agents:
                self._fill(infos.add(), self._templates[name], each)
        output.rl_output.side_channel = channels.write(self._task.statistics())
        return message

    def _describe(self, name: str, parameters: Any) -> None:
        behavior = self._task.behaviors[name]
        parameters.brain_name = name
        parameters.is_training = True
        parameters.action_spec.num_continuous_actions = behavior.continuous
        parameters.action_spec.num_discrete_actions = len(behavior.branches)
        parameters.action_spec.discrete_branch_sizes.extend(behavior.branches)

    def _fill(self, info: Any, template: Any, news: News) -> None:
        info.CopyFrom(template)
        info.id, info.reward = news.agent, news.reward
        info.group_id, info.group_reward = news.group, news.group_reward
        info.done, info.max_step_reached = news.done, news.interrupted
        info.action_mask.extend(news.mask)
        del info.observations[len(news.obs) :]
        for observation, value in zip(info.observations, news.obs, strict=True):
            if isinstance(value, bytes):
                observation.compressed_data = value
            else:  # the numbers of a message lie in it as they do in memory
                data = value.tobytes()
                observation.float_data.ParseFromString(b"\n" + _varint(len(data)) + data)
                if value.size != _size(observation):
                    observation.shape[:] = value.shape


def _template(behavior: Behavior) -> Any:
    """What all agents of a behavior say alike."""
    info = api.AgentInfoProto()
    for sensor in behavior.sensors:
        _sensor(info.observations.add(), sensor)
    return info


def _sensor(observation: Any, sensor: Sensor) -> None:
    observation.name = sensor.name
    observation.shape.extend(sensor.shape)
    properties = sensor.properties if len(sensor.properties) == len(sensor.shape) else (1,) * len(sensor.shape)
    observation.dimension_properties.extend(properties)
    observation.observation_type = int(sensor.goal)
    observation.compression_type = api.PNG if sensor.png else api.NONE


def _size(observation: Any) -> int:
    size = 1
    for length in observation.shape:
        size *= length
    return size


def _varint(number: int) -> bytes:
    data = b""
    while number >= 128:
        data += bytes([number % 128 + 128])
        number //= 128
    return data + bytes([number])
