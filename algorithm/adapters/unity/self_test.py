"""A test of ML-Agents' protocol on this machine: a trainer exchanges messages with a stub of a scene, over gRPC."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.scenes.ports import LOOPBACK, find_free_port
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.client import API_VERSION, CAPABILITIES, STATUS_OK, UnityClient

api = compat.load_api()

CONNECT_SECONDS = 20.0  # seconds within which the trainer must listen
PACKAGE = "3.0.0"  # version of Unity's package
BEHAVIOR = "Handshake?team=0"
TIMEOUT = 15.0  # seconds for each message
ACTION = 0.5  # the action that the trainer sends
PURE_PYTHON_ADVICE = "protobuf runs in pure Python: unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install its wheel"


class UnityStub:
    """The connection of a scene to the trainer at `port`, with serialized messages.

    Every exchange raises grpc.RpcError if the trainer does not listen or closes the connection.
    """

    def __init__(self, port: int):
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        channel = api.grpc.insecure_channel(f"{LOOPBACK}:{port}", [*options, ("grpc.enable_http_proxy", 0)])
        self._exchange = channel.unary_unary(
            "/communicator_objects.UnityToExternalProto/Exchange",
            response_deserializer=api.UnityMessageProto.FromString,
        )

    def send_initialization(
        self, scene: str, version: str = API_VERSION, package: str = PACKAGE, hybrid_actions: bool = True
    ) -> None:
        """Wait for the trainer and send it the name, versions and capabilities of the scene."""
        start = {
            "name": scene,
            "communication_version": version,
            "package_version": package,
            "capabilities": {**dict.fromkeys(CAPABILITIES, True), "hybridActions": hybrid_actions},
        }
        output = {"rl_initialization_output": start}
        message = api.UnityMessageProto(header={"status": STATUS_OK}, unity_output=output)
        self._exchange(message.SerializeToString(), wait_for_ready=True, timeout=CONNECT_SECONDS)

    def exchange(self, message: bytes) -> Any:
        """Send a serialized message and return the trainer's answer."""
        return self._exchange(message)


def make_header(status: int) -> bytes:
    """Return a serialized message that holds only a status."""
    return api.UnityMessageProto(header={"status": status}).SerializeToString()


def run_self_test() -> str:
    """Exchange the messages of one tick with a stub, and return the versions of the packages that took part.

    Raises:
        EnvironmentStartError: If the trainer or the stub does not start, or protobuf runs in pure Python and fails.
        EnvironmentCrashed: If a message that arrives differs from the message that was sent.
    """
    port, errors = find_free_port(), []

    def run_scene() -> None:
        try:
            run_stub(port)
        except Exception as error:  # raised by the thread that waits for the stub
            errors.append(error)

    threading.Thread(target=run_scene, daemon=True).start()
    try:
        with UnityClient(None, port=port, start_limit=TIMEOUT, limit=TIMEOUT) as client:
            client.reset()  # then an action, which is the agent's next observation
            decisions, _ = client.step({BEHAVIOR: np.array([[ACTION]], np.float32)}).batches[BEHAVIOR]
            observed = float(decisions.obs["action"][0, 0])
    except Exception as error:
        cause = errors[0] if errors else error
        if is_pure_python():
            raise EnvironmentStartError(f"{type(cause).__name__}: {PURE_PYTHON_ADVICE}") from cause
        raise cause from None
    if observed != ACTION:
        raise EnvironmentCrashed(f"the trainer sent the action {ACTION}, but the scene received {observed}")
    note = f"; but {PURE_PYTHON_ADVICE}" if is_pure_python() else ""
    return f"mlagents-envs {api.__version__} and grpcio {api.grpc.__version__} on port {port}{note}"


def is_pure_python() -> bool:
    """Return whether protobuf runs without its native code, which is slow, and fails in some versions."""
    from google.protobuf.internal import api_implementation

    return api_implementation.Type() == "python"


def run_stub(port: int) -> None:
    """Run a scene whose agent observes the last action that it received, until the trainer sends a quit."""
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
