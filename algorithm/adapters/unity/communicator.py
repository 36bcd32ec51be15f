"""The wire to one player: gRPC, of which the trainer is the server and Unity the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.ports import LOOPBACK, describe_holder, is_taken

api = compat.load_api()

MAX_MESSAGE_BYTES = 64 * 2**20  # bytes of a message
LOOKAHEAD_BYTES = 4 * 2**20  # bytes that a player may send ahead: the images of a tick in one go
POLL_SECONDS = 0.2  # seconds between two looks at the player's process
QUIT_SECONDS = 1.0  # seconds in which a player that waits takes the last message
STATUS_OK, STATUS_QUIT = 200, 400
DISCONNECTED = object()  # in place of a request: the player went away before it took the answer to its last one

PollCallback = Callable[[], None]


class _DaemonExecutor(Executor):
    """Runs calls one after another in a daemon thread, so that no call that waits keeps the interpreter alive."""

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
    """Hands each request of the player to `requests`, and answers it with what comes out of `replies`."""

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
    """Serves one player on a port of its own; port 0 takes a free one, which `port` tells.

    `start_limit` and `limit` are the seconds that a player may take to connect, None is without end, and to answer.
    Everything that goes wrong is EnvironmentCrashed with a line about the player, except a port that cannot be had, which
    is EnvironmentStartError at once. It also takes the place of RpcCommunicator in ML-Agents' UnityEnvironment.
    """

    def __init__(self, port: int, start_limit: float | None, limit: float, host: str = LOOPBACK):
        self.host = host
        self.port: int
        self._start_limit = start_limit
        self._awaits_reply = False  # the player waits for an answer
        super().__init__(base_port=port, timeout_wait=limit)

    def create_server(self) -> None:
        """Listen; raises EnvironmentStartError where the port is taken."""
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
        """Raises EnvironmentStartError where another program listens on the port."""
        if is_taken(port, self.host):
            raise self._make_port_error()

    def initialize(self, inputs: Any, poll_callback: PollCallback | None = None) -> Any:
        """Both exchanges of the handshake: wait for the player, and send it `inputs`. What it says of itself."""
        first = self._receive(self._start_limit, poll_callback, "did not connect")
        self._reply(inputs)
        self._receive(self.timeout_wait, poll_callback, "did not finish its start")
        return first.unity_output

    def exchange(self, inputs: Any, poll_callback: PollCallback | None = None) -> Any:
        """Answer the player and wait for what it says next; None where it quits."""
        self._reply(inputs)
        answer = self._receive(self.timeout_wait, poll_callback, "did not answer")
        return answer.unity_output if answer.header.status == STATUS_OK else None

    def close(self) -> None:
        """Tell the player to quit, if it listens, and free the port; calling it twice is harmless."""
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
            disconnected = True  # one more look at its process, which knows better why

    def _make_port_error(self) -> EnvironmentStartError:
        return EnvironmentStartError(
            f"port {self.port} is taken by {describe_holder(self.port)}: end it, or give another port"
        )
