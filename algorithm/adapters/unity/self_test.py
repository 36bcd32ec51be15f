"""A scene of one agent and a trainer, both here: whether ML-Agents' protocol works on this machine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.unity.client import UnityClient, api
from algorithm.adapters.unity.communicator import STATUS_OK
from algorithm.adapters.unity.ports import find_free_port
from algorithm.adapters.unity.unity_stub import UnityStub, make_header

BEHAVIOR = "Handshake?team=0"
TIMEOUT = 15.0  # seconds for each message
ACTION = 0.5  # what the agent is told to do
PURE_PYTHON_ADVICE = "protobuf runs in pure Python: unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install its wheel"


def run_self_test() -> str:
    """Play a tick with a scene over gRPC; what took part in it.

    Raises EnvironmentStartError or EnvironmentCrashed where that does not work.
    """
    port, errors = find_free_port(), []

    def run_scene() -> None:
        try:
            run_stub(port)
        except Exception as error:  # told by the thread that waits for it
            errors.append(error)

    threading.Thread(target=run_scene, daemon=True).start()
    try:
        observed = _run_trainer(port)
    except Exception as error:
        cause = errors[0] if errors else error
        if is_pure_python():
            raise EnvironmentStartError(f"{type(cause).__name__}: {PURE_PYTHON_ADVICE}") from cause
        raise cause from None
    if observed != ACTION:
        raise EnvironmentCrashed(f"an agent that was told {ACTION} heard {observed}")
    note = f"; but {PURE_PYTHON_ADVICE}" if is_pure_python() else ""
    return f"mlagents-envs {api.__version__} and grpcio {api.grpc.__version__} on port {port}{note}"


def is_pure_python() -> bool:
    """Whether protobuf does without its native code: messages are slow then, or fail, by its version."""
    from google.protobuf.internal import api_implementation

    return api_implementation.Type() == "python"


def run_stub(port: int) -> None:
    """The scene: its agent observes what it was last told to do; until the trainer says quit."""
    stub = UnityStub(port)
    stub.send_initialization("handshake")
    reply, action = stub.exchange(make_header(STATUS_OK)), 0.0
    while reply.header.status == STATUS_OK:
        actions = reply.unity_input.rl_input.agent_actions
        if BEHAVIOR in actions:
            (action,) = actions[BEHAVIOR].value[0].continuous_actions
        reply = stub.exchange(_make_message(action))


def _make_message(observed: float) -> bytes:
    message: Any = api.UnityMessageProto()
    message.header.status = STATUS_OK
    behavior = message.unity_output.rl_initialization_output.brain_parameters.add()
    behavior.brain_name, behavior.is_training = BEHAVIOR, True
    behavior.action_spec.num_continuous_actions = 1
    sensor = message.unity_output.rl_output.agentInfos[BEHAVIOR].value.add(id=1).observations.add()
    sensor.name, sensor.compression_type = "action", api.NONE
    sensor.shape.append(1)
    sensor.dimension_properties.append(1)
    sensor.float_data.data.append(observed)
    return message.SerializeToString()


def _run_trainer(port: int) -> float:
    """The trainer: what the agent observes after it was told something."""
    with UnityClient(None, port=port, start_limit=TIMEOUT, limit=TIMEOUT) as client:
        client.reset()
        client.set_actions(BEHAVIOR, api.ActionTuple(continuous=np.array([[ACTION]], np.float32)))
        client.step()
        waiting, _ = client.get_steps(BEHAVIOR)
        return float(waiting.obs[0][0, 0])
