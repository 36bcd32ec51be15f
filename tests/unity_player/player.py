"""Unity's side of the protocol: the client, which sends the state of its agents and receives their actions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.internal.encoder import _VarintBytes

from algorithm.adapters.unity.client import API_VERSION, STATUS_OK, STATUS_QUIT, api
from algorithm.adapters.unity.self_test import CONNECT_SECONDS, PACKAGE, UnityStub, make_header
from tests.unity_player import channels
from tests.unity_player.faults import Faults, Quit
from tests.unity_player.scene import Action, News, Sensor, Task

FLOATS = 1 << 3 | 2  # protobuf's tag of a list of numbers that is field 1


class Player:
    """A player of one task."""

    def __init__(self, port: int, task: Task, faults: Faults, record: Path | None = None):
        self._task = task
        self._faults = faults
        self._record = record
        self._sent_behaviors: set[str] = set()  # behaviors whose parameters have been sent
        self._samplers: dict[str, tuple[str, list[float]]] = {}
        self._trainer = UnityStub(port)

    def play(self) -> None:
        """Play until the trainer sends a quit; raise grpc.RpcError if it disconnects."""
        if self._faults.kind == "never":
            time.sleep(CONNECT_SECONDS)
            return
        kind = self._faults.kind
        self._trainer.send_initialization(
            type(self._task).__name__,
            "2.0.0" if kind == "version" else API_VERSION,
            "1.0.0" if kind == "old" else PACKAGE,
            hybrid_actions=kind != "old",
        )
        if kind == "handshake":
            os._exit(3)
        answer = self._trainer.exchange(make_header(STATUS_OK))
        tick = 0
        while answer.header.status == STATUS_OK:
            try:
                self._faults.before_tick(tick)
            except Quit:
                self._trainer.exchange(make_header(STATUS_QUIT))
                return
            answer = self._trainer.exchange(self._message(self._react(answer.unity_input.rl_input), tick))
            tick += 1

    def _react(self, received: Any) -> dict[str, list[News]]:
        """Return the next tick of the task, for the trainer's actions or its reset."""
        reset = received.command == api.RESET
        if received.side_channel:
            self._receive_settings(channels.read(received.side_channel))
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
            for name, given in received.agent_actions.items()
        }
        return self._remember(self._task.step(actions))

    def _remember(self, news: dict[str, list[News]]) -> dict[str, list[News]]:
        self._waiting = {name: [each.agent for each in agents if not each.done] for name, agents in news.items()}
        return news

    def _receive_settings(self, settings: list[tuple[str, str, list[float]]]) -> None:
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

    def _message(self, news: dict[str, list[News]], tick: int) -> bytes:
        """Return the serialized message."""
        message = api.UnityMessageProto(header={"status": STATUS_OK})
        output = message.unity_output
        output.rl_output.side_channel = channels.write(self._task.statistics())
        for name, agents in news.items():
            if agents and name not in self._sent_behaviors:
                self._sent_behaviors.add(name)
                self._describe(name, output.rl_initialization_output.brain_parameters.add())
            self._faults.spoil(tick, agents)
            sensors = self._task.behaviors[name].sensors
            output.rl_output.agentInfos[name].value.extend(_encode_agent(agent, sensors) for agent in agents)
        return message.SerializeToString()

    def _describe(self, name: str, parameters: Any) -> None:
        behavior = self._task.behaviors[name]
        parameters.brain_name = name
        parameters.is_training = True
        parameters.action_spec.num_continuous_actions = behavior.continuous
        parameters.action_spec.num_discrete_actions = len(behavior.branches)
        parameters.action_spec.discrete_branch_sizes.extend(behavior.branches)


def _encode_agent(news: News, sensors: tuple[Sensor, ...]) -> Any:
    return api.AgentInfoProto(
        id=news.agent,
        reward=news.reward,
        done=news.done,
        max_step_reached=news.interrupted,
        action_mask=news.mask,
        group_id=news.group,
        group_reward=news.group_reward,
        observations=[_encode(value, sensor) for value, sensor in zip(news.obs, sensors, strict=True)],
    )


def _encode(value: np.ndarray | bytes, sensor: Sensor) -> Any:
    is_png = isinstance(value, bytes)
    shape = sensor.shape if is_png or value.size == np.prod(sensor.shape) else value.shape
    observation = api.ObservationProto(
        name=sensor.name,
        shape=shape,
        dimension_properties=sensor.properties if len(sensor.properties) == len(shape) else (1,) * len(shape),
        observation_type=int(sensor.goal),
        compression_type=api.PNG if sensor.png else api.NONE,
    )
    if is_png:
        observation.compressed_data = value
    else:  # the numbers as they are in a message: the only field of this part is a list of them
        observation.float_data.MergeFromString(bytes([FLOATS]) + _VarintBytes(value.nbytes) + value.tobytes())
    return observation
