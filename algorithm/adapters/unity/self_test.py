"""A scene of one agent and a trainer, both here: whether ML-Agents' protocol works on this machine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentBroke, EnvironmentFailed
from algorithm.adapters.unity.client import Client, api
from algorithm.adapters.unity.communicator import STATUS_OK
from algorithm.adapters.unity.ports import free
from algorithm.adapters.unity.unity_stub import Counterpart, header

BEHAVIOR = "Handshake?team=0"
LIMIT = 15.0  # seconds for each message
TOLD = 0.5  # what the agent is told to do
PURE = "protobuf runs in pure Python: unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install its wheel"


def shake_hands() -> str:
    """Play a tick with a scene over gRPC; what took part in it.

    Raises EnvironmentFailed or EnvironmentBroke where that does not work.
    """
    port, wrong = free(), []

    def scene() -> None:
        try:
            play(port)
        except Exception as error:  # told by the thread that waits for it
            wrong.append(error)

    threading.Thread(target=scene, daemon=True).start()
    try:
        seen = _tick(port)
    except Exception as error:
        cause = wrong[0] if wrong else error
        if pure_python():
            raise EnvironmentFailed(f"{type(cause).__name__}: {PURE}") from cause
        raise cause from None
    if seen != TOLD:
        raise EnvironmentBroke(f"an agent that was told {TOLD} heard {seen}")
    note = f"; but {PURE}" if pure_python() else ""
    return f"mlagents-envs {api.__version__} and grpcio {api.grpc.__version__} on port {port}{note}"


def pure_python() -> bool:
    """Whether protobuf does without its native code: messages are slow then, or fail, by its version."""
    from google.protobuf.internal import api_implementation

    return api_implementation.Type() == "python"


def play(port: int) -> None:
    """The scene: its agent observes what it was last told to do; until the trainer says quit."""
    unity = Counterpart(port)
    unity.introduce("handshake")
    answer, told = unity.exchange(header(STATUS_OK)), 0.0
    while answer.header.status == STATUS_OK:
        actions = answer.unity_input.rl_input.agent_actions
        if BEHAVIOR in actions:
            (told,) = actions[BEHAVIOR].value[0].continuous_actions
        answer = unity.exchange(_says(told))


def _says(observed: float) -> bytes:
    message: Any = api.UnityMessageProto()
    message.header.status = STATUS_OK
    behavior = message.unity_output.rl_initialization_output.brain_parameters.add()
    behavior.brain_name, behavior.is_training = BEHAVIOR, True
    behavior.action_spec.num_continuous_actions = 1
    sensor = message.unity_output.rl_output.agentInfos[BEHAVIOR].value.add(id=1).observations.add()
    sensor.name, sensor.compression_type = "told", api.NONE
    sensor.shape.append(1)
    sensor.dimension_properties.append(1)
    sensor.float_data.data.append(observed)
    return message.SerializeToString()


def _tick(port: int) -> float:
    """The trainer: what the agent observes after it was told something."""
    with Client(None, port=port, start_limit=LIMIT, limit=LIMIT) as client:
        client.reset()
        client.set_actions(BEHAVIOR, api.ActionTuple(continuous=np.array([[TOLD]], np.float32)))
        client.step()
        waiting, _ = client.get_steps(BEHAVIOR)
        return float(waiting.obs[0][0, 0])
