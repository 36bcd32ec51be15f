"""Unity's end of the wire, of which it is the client: it says what happened, and is told what to do."""

from __future__ import annotations

from typing import Any

from algorithm.adapters.unity import compat
from algorithm.adapters.unity.communicator import STATUS_OK
from algorithm.adapters.unity.ports import LOOPBACK

api = compat.load_api()

CONNECT_SECONDS = 20.0  # seconds in which the trainer has to be there
VERSION, PACKAGE = "1.5.0", "3.0.0"  # of the protocol, and of Unity's package


class UnityStub:
    """A scene's connection to the trainer at `port`; messages are serialized, for scenes that write them themselves.

    Every exchange raises grpc.RpcError where the trainer is not there, or goes away.
    """

    def __init__(self, port: int):
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        channel = api.grpc.insecure_channel(f"{LOOPBACK}:{port}", [*options, ("grpc.enable_http_proxy", 0)])
        self._exchange = channel.unary_unary(
            "/communicator_objects.UnityToExternalProto/Exchange",
            response_deserializer=api.UnityMessageProto.FromString,
        )

    def send_initialization(
        self, scene: str, version: str = VERSION, package: str = PACKAGE, hybrid_actions: bool = True
    ) -> None:
        """Wait for the trainer, and say who is there."""
        message = api.UnityMessageProto()
        message.header.status = STATUS_OK
        start = message.unity_output.rl_initialization_output
        start.name, start.communication_version, start.package_version = scene, version, package
        start.capabilities.CopyFrom(api.UnityEnvironment._get_capabilities_proto())
        start.capabilities.hybridActions = hybrid_actions
        self._exchange(message.SerializeToString(), wait_for_ready=True, timeout=CONNECT_SECONDS)

    def exchange(self, message: bytes) -> Any:
        """Say something; what the trainer answers."""
        return self._exchange(message)


def make_header(status: int) -> bytes:
    """A message that says nothing but how it stands."""
    message = api.UnityMessageProto()
    message.header.status = status
    return message.SerializeToString()
