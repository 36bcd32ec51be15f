"""The connection to one player over gRPC, in which the trainer is the server and Unity the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.os_process import LOOPBACK, describe_holder, is_taken

api = compat.load_api()

MAX_MESSAGE_BYTES = 64 * 2**20  # largest size of a message
LOOKAHEAD_BYTES = 4 * 2**20  # bytes that a player may send before they are read: the images of a tick
POLL_SECONDS = 0.2  # seconds between two checks of the player's process
QUIT_SECONDS = 1.0  # seconds within which a waiting player receives the last message
STATUS_OK, STATUS_QUIT = 200, 400
DISCONNECTED = object()  # instead of a request: the player disconnected before it received the last answer

PollCallback = Callable[[], None]


class _DaemonExecutor(Executor):
    """An executor with one daemon thread, so that no waiting call keeps the interpreter alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue = SimpleQueue()
        threading.Thread(target=self._run_calls, name="unity", daemon=True).start()

    def submit(self, call: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        self._calls.put((future, call, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.put(None)

    def _run_calls(self) -> None:
        while (work := self._calls.get()) is not None:
            future, call, args, kwargs = work
            try:
                future.set_result(call(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)


class _Servicer(api.UnityToExternalProtoServicer):
    """A servicer that puts each request of the player into `requests`, and answers it from `replies`."""

    def __init__(self) -> None:
        self.requests: SimpleQueue = SimpleQueue()
        self.replies: SimpleQueue = SimpleQueue()

    def Exchange(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.put(request)
        reply = self.replies.get()
        if not context.is_active():
            self.requests.put(DISCONNECTED)
        return reply


class Communicator(api.RpcCommunicator):
    """A server for one player, which can also replace RpcCommunicator in ML-Agents' UnityEnvironment.

    Every failure raises EnvironmentCrashed; its message is a predicate about the player ("broke the connection").
    """

    def __init__(self, port: int, start_limit: float | None, limit: float, host: str = LOOPBACK):
        """Listen on a port.

        Args:
            port: Port; 0 for any free port, which the attribute `port` then holds.
            start_limit: Seconds within which the player must connect; None for no limit.
            limit: Seconds within which the player must answer.
            host: Address to listen on.

        Raises:
            EnvironmentStartError: If the port is taken.
        """
        self.host = host
        self.port: int
        self._start_limit = start_limit
        self._awaits_reply = False  # whether the player waits for an answer
        super().__init__(base_port=port, timeout_wait=limit)

    def create_server(self) -> None:
        """Start the server. Raise EnvironmentStartError if the port is taken."""
        self.check_port(self.port)
        self._thread = _DaemonExecutor()
        self.unity_to_external = _Servicer()
        self.server = api.grpc.server(
            self._thread,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
            ],
        )
        api.add_UnityToExternalProtoServicer_to_server(self.unity_to_external, self.server)
        try:
            self.port = self.server.add_insecure_port(f"{self.host}:{self.port}")
        except RuntimeError as error:
            self._thread.shutdown()
            raise self._make_port_error() from error
        self.server.start()
        self.is_open = True

    def check_port(self, port: int) -> None:
        """Raise EnvironmentStartError if another program listens on the port."""
        if is_taken(port, self.host):
            raise self._make_port_error()

    def initialize(self, inputs: Any, poll_callback: PollCallback | None = None) -> Any:
        """Wait for the player, send it `inputs`, and return its description of itself."""
        first = self._receive(self._start_limit, poll_callback, "did not connect")
        self._reply(inputs)
        self._receive(self.timeout_wait, poll_callback, "did not finish its start")
        return first.unity_output

    def exchange(self, inputs: Any, poll_callback: PollCallback | None = None) -> Any:
        """Answer the player and return its next message; None if it quits."""
        self._reply(inputs)
        answer = self._receive(self.timeout_wait, poll_callback, "did not answer")
        return answer.unity_output if answer.header.status == STATUS_OK else None

    def close(self) -> None:
        """Send the player a quit if it waits, and free the port. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        message = api.UnityMessageProto()
        message.header.status = STATUS_QUIT
        self.unity_to_external.replies.put(message)
        self.server.stop(QUIT_SECONDS if self._awaits_reply else None).wait(2 * QUIT_SECONDS)
        self._thread.shutdown()

    def _reply(self, inputs: Any) -> None:
        if not self.is_open:
            raise EnvironmentCrashed("is not connected any more")
        message = api.UnityMessageProto(unity_input=inputs)
        message.header.status = STATUS_OK
        self._awaits_reply = False
        self.unity_to_external.replies.put(message)

    def _receive(self, limit: float | None, poll: PollCallback | None, failure: str) -> Any:
        start = time.monotonic()
        disconnected = False
        while True:
            try:
                request = self.unity_to_external.requests.get(timeout=POLL_SECONDS)
            except Empty:
                if poll:
                    poll()
                if disconnected:
                    raise EnvironmentCrashed("broke the connection") from None
                if limit is not None and time.monotonic() - start >= limit:
                    raise EnvironmentCrashed(f"{failure} within {limit:g} s") from None
                continue
            if request is not DISCONNECTED:
                self._awaits_reply = True
                return request
            disconnected = True  # if its process has exited, the next check gives the exit as the reason

    def _make_port_error(self) -> EnvironmentStartError:
        return EnvironmentStartError(
            f"port {self.port} is taken by {describe_holder(self.port)}: end it, or give another port"
        )
