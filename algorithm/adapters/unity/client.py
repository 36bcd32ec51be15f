"""The trainer's side of one Unity scene, in a player that it starts or in the editor: a server and its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.curriculum import Gaussian, MultiRange, Uniform, Value
from algorithm.adapters.scenes.client import PlayerQuit, SceneClient
from algorithm.adapters.scenes.player import PlayerProcess
from algorithm.adapters.scenes.ports import LOOPBACK, is_taken, make_port_error
from algorithm.adapters.scenes.scene import Batch, SceneTick
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.decoding import Decoder
from algorithm.specs import Role

api = compat.load_api()

API_VERSION = "1.5.0"  # of ML-Agents' protocol
CAPABILITIES = (
    "baseRLCapabilities",
    "concatenatedPngObservations",
    "compressedChannelMapping",
    "hybridActions",
    "trainingAnalytics",
    "variableLengthObservation",
    "multiAgentGroups",
)
MAX_MESSAGE_BYTES = 64 * 2**20  # largest size of a message
LOOKAHEAD_BYTES = 4 * 2**20  # bytes that a player may send before they are read: the images of a tick
QUIT_SECONDS = 1.0  # seconds within which a waiting player receives the last message
MAX_IDLE_TICKS = 1000  # consecutive ticks in which no agent requests a decision
STATUS_OK, STATUS_QUIT = 200, 400
DISCONNECTED = object()  # instead of a request: the player disconnected before it received the last answer


class UnityClient(SceneClient):
    """A client of one Unity scene."""

    def __init__(
        self,
        program: Path | None,
        *,
        port: int,
        start_limit: float | None,
        limit: float,
        arguments: Sequence[str] = (),
        seed: int = 0,
        engine: Mapping[str, float] | None = None,
        parameters: Mapping[str, Value] | None = None,
        log: Path | None = None,
        on_listening: Callable[[], object] = lambda: None,
    ):
        """Start a player, or wait for the editor, and exchange the first messages.

        Args:
            program: Player, which is started with `--mlagents-port` and `arguments`; None for the editor.
            port: Port to listen on; 0 for any free port, which only a player can be given.
            start_limit: Seconds within which the player must connect; None for no limit.
            limit: Seconds within which the player must answer each message.
            arguments: Further arguments of the player.
            seed: Seed of the scene and of the samplers of its parameters.
            engine: Settings of Unity's engine, by the names of ML-Agents' EngineConfigurationChannel.
            parameters: Environment parameters of the first episodes.
            log: The player's log file, whose last lines are quoted in errors.
            on_listening: Called when the player can connect.

        Raises:
            EnvironmentStartError: If the scene does not start.
        """
        super().__init__(program, limit)
        self._seed = seed
        self._parameters, self._statistics = api.EnvironmentParametersChannel(), api.StatsSideChannel()
        engine_channel = api.EngineConfigurationChannel()
        self._channels = api.SideChannelManager([engine_channel, self._parameters, self._statistics])
        engine_channel.set_configuration_parameters(**(engine or {}))
        self._set_parameters(parameters or {})
        self._decoders: dict[str, Decoder] = {}
        self._batches: dict[str, tuple[Batch, Batch]] = {}  # of the last tick
        self._server = Server(port)
        self.port = self._server.port
        on_listening()
        with self.convert_start_errors():
            if program:
                command = [str(program.absolute()), "--mlagents-port", str(self.port), *arguments]
                self._process = PlayerProcess(command, log)
            self._perform_handshake(start_limit)

    @property
    def roles(self) -> dict[str, Role]:
        """Return the role of one agent of each behavior that has appeared."""
        return {name: decoder.role for name, decoder in self._decoders.items()}

    def reset(self) -> SceneTick:
        """Reset all episodes, and return the first tick in which an agent requests a decision.

        Raises:
            EnvironmentCrashed: If the player fails.
            RuntimeError: If no agent requests a decision in `MAX_IDLE_TICKS` ticks.
        """
        tick = self._exchange(api.RESET, {})
        for _ in range(MAX_IDLE_TICKS):
            if any(len(decisions) for decisions, _ in tick.batches.values()):
                tick.roles = self.roles
                return tick
            tick = self._exchange(api.STEP, {})
        raise RuntimeError(
            f"no agent requested a decision in {MAX_IDLE_TICKS} ticks; does any agent have a Decision Requester?"
        )

    def step(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value] | None = None) -> SceneTick:
        """Execute actions {behavior: [n, size]} and return the next tick.

        Args:
            actions: For the agents that await a decision, in the order of the last tick; continuous dimensions in
                [-1, 1], then the index of each discrete branch.
            parameters: Environment parameters that have changed.

        Raises:
            EnvironmentCrashed: If the player fails.
            ValueError: If the actions have another shape.
        """
        for name, (decisions, _) in self._batches.items():
            shape = len(decisions), self._decoders[name].role.action_spec.size
            given = actions[name].shape if name in actions else (0, shape[1])
            if given != shape:
                raise ValueError(f"the actions of {name!r} have the shape {given}, not {shape}")
        self._set_parameters(parameters or {})
        return self._exchange(api.STEP, actions)

    def disconnect(self) -> None:
        self._server.close()

    def poll(self, seconds: float) -> Any:
        return self._server.receive(seconds)

    @property
    def is_disconnected(self) -> bool:
        return self._server.is_disconnected

    def _set_parameters(self, parameters: Mapping[str, Value]) -> None:
        """Set environment parameters, which the scene receives with the next step or reset."""
        for name, value in parameters.items():
            if isinstance(value, Uniform):
                self._parameters.set_uniform_sampler_parameters(name, value.min_value, value.max_value, self._seed)
            elif isinstance(value, Gaussian):
                self._parameters.set_gaussian_sampler_parameters(name, value.mean, value.st_dev, self._seed)
            elif isinstance(value, MultiRange):
                self._parameters.set_multirangeuniform_sampler_parameters(name, list(value.intervals), self._seed)
            else:
                self._parameters.set_float_parameter(name, value)

    def _perform_handshake(self, start_limit: float | None) -> None:
        start = {
            "seed": self._seed,
            "communication_version": API_VERSION,
            "package_version": api.__version__,
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            "num_areas": 1,
        }
        output = self.receive(start_limit, "did not connect").unity_output.rl_initialization_output
        self._server.reply(api.UnityInputProto(rl_initialization_input=start))
        self.receive(self._limit, "did not finish its start")
        version = output.communication_version
        if version.partition(".")[0] != API_VERSION.partition(".")[0]:
            raise EnvironmentStartError(f"uses version {version or '(none)'} of ML-Agents' protocol, not {API_VERSION}")
        if not output.capabilities.hybridActions:
            raise EnvironmentStartError(
                f"was built with version {output.package_version} of ML-Agents' package, which is older than 2.0"
            )

    def _exchange(self, command: int, actions: Mapping[str, np.ndarray]) -> SceneTick:
        inputs = api.UnityInputProto()
        inputs.rl_input.command = command
        inputs.rl_input.side_channel = bytes(self._channels.generate_side_channel_messages())
        for name, behavior_actions in actions.items():
            n_continuous = self._decoders[name].role.action_spec.continuous
            continuous, discrete = np.split(behavior_actions, [n_continuous], axis=1)
            agents = inputs.rl_input.agent_actions[name].value
            for row, branches in zip(np.clip(continuous, -1, 1).tolist(), discrete.astype(int).tolist(), strict=True):
                agents.add(continuous_actions=row, discrete_actions=branches)
        with self.convert_errors():
            self._server.reply(inputs)
            message = self.receive(self._limit, "did not answer")
            if message.header.status != STATUS_OK:
                raise PlayerQuit("quit")
            return self._read_tick(message.unity_output)

    def _read_tick(self, output: Any) -> SceneTick:
        agents = output.rl_output.agentInfos
        new = {}
        for parameters in output.rl_initialization_output.brain_parameters:
            name = parameters.brain_name
            if name not in self._decoders and name in agents and agents[name].value:
                self._decoders[name] = Decoder(parameters, agents[name].value[0])
                new[name] = self._decoders[name].role
        self._batches = {
            name: decoder.decode(agents[name].value if name in agents else ())
            for name, decoder in self._decoders.items()
        }
        self._channels.process_side_channel_message(output.rl_output.side_channel)
        statistics = {
            name: [(value, aggregation.value) for value, aggregation in values]
            for name, values in self._statistics.get_and_reset_stats().items()
        }
        return SceneTick(self._batches, new, statistics)


class Server(api.UnityToExternalProtoServicer):
    """A gRPC server for one player, which sends messages and waits for the answers. `port` is where it listens.

    Raises:
        EnvironmentStartError: Another program listens on the port.
    """

    def __init__(self, port: int):
        self.is_disconnected = False  # whether the player disconnected before it received the last answer
        self._messages: SimpleQueue = SimpleQueue()  # of the player
        self._answers: SimpleQueue = SimpleQueue()
        self._awaits_answer = False  # whether the player does
        self._is_open = True
        if is_taken(port):  # gRPC would print its own message
            raise make_port_error(port)
        options = {
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
            "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
            "grpc.http2.lookahead_bytes": LOOKAHEAD_BYTES,
        }
        self._server = api.grpc.server(_DaemonExecutor(), options=list(options.items()))
        api.add_UnityToExternalProtoServicer_to_server(self, self._server)
        try:
            self.port = self._server.add_insecure_port(f"{LOOPBACK}:{port}")
        except RuntimeError as error:
            raise make_port_error(port) from error
        self._server.start()

    def Exchange(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Put a message of the player into a queue and return its answer, in the thread of the server."""
        self._messages.put(request)
        answer = self._answers.get()
        if not context.is_active():
            self._messages.put(DISCONNECTED)
        return answer

    def receive(self, seconds: float) -> Any:
        """Return the player's next message. Raise queue.Empty if none arrives in time."""
        message = self._messages.get(timeout=seconds)
        if message is DISCONNECTED:  # its process may be about to exit, which the next check then reports
            self.is_disconnected = True
            message = self._messages.get(timeout=seconds)
        self._awaits_answer = True
        return message

    def reply(self, inputs: Any) -> None:
        """Answer the player's last message. Raise EnvironmentCrashed if this server is closed."""
        if not self._is_open:
            raise EnvironmentCrashed("is not connected any more")
        self._awaits_answer = False
        self._answers.put(api.UnityMessageProto(header={"status": STATUS_OK}, unity_input=inputs))

    def close(self) -> None:
        """Send the player a quit if it waits, and free the port. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._answers.put(api.UnityMessageProto(header={"status": STATUS_QUIT}))
        self._server.stop(QUIT_SECONDS if self._awaits_answer else None).wait(2 * QUIT_SECONDS)


class _DaemonExecutor(Executor):
    """An executor that runs each call in a daemon thread, so that no waiting call keeps the interpreter alive."""

    def submit(self, call: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=run, name="unity", daemon=True).start()
        return future
