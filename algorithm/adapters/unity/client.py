"""The trainer's side of one Unity simulation, in a player that the trainer starts or in the editor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, SimulatorError
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.communicator import Communicator
from algorithm.adapters.unity.decoding import Decoder
from algorithm.adapters.unity.os_process import LOOPBACK, UnityProcess

api = compat.load_api()

API_VERSION = api.UnityEnvironment.API_VERSION


class PlayerQuit(EnvironmentCrashed):
    """An error for a player that quit: its window was closed, or Stop was pressed in the editor."""


class UnityClient:
    """A client of one simulation, with the methods of ML-Agents' UnityEnvironment.

    Any failure ends the player and raises EnvironmentCrashed with one line, after which the client cannot be used.
    """

    def __init__(
        self,
        program: Path | None,
        *,
        port: int,
        start_limit: float | None,
        limit: float,
        arguments: Sequence[str] = (),
        seed: int = 0,
        channels: Sequence[Any] = (),
        areas: int = 1,
        host: str = LOOPBACK,
        log: Path | None = None,
    ):
        """Start a player, or wait for the editor, and exchange the first messages.

        Args:
            program: Player, which is started with `--mlagents-port` and `arguments`; None for the editor.
            port: Port to listen on; 0 for any free port, which only a player can be given.
            start_limit: Seconds within which the player must connect; None for no limit.
            limit: Seconds within which the player must answer each message.
            arguments: Further arguments of the player.
            seed: Seed of the simulation.
            channels: ML-Agents' side channels.
            areas: Number of training areas, for scenes that replicate them.
            host: Address to listen on.
            log: The player's log file, whose last lines are quoted in errors.

        Raises:
            EnvironmentStartError: If the simulation does not start.
        """
        self.name = f"the player {program.name}" if program else "the editor"
        self._channels = api.SideChannelManager(list(channels))
        self._decoders: dict[str, Decoder] = {}
        self._steps: dict[str, tuple[Any, Any]] = {}
        self._actions: dict[str, list[np.ndarray]] = {}
        self._process: UnityProcess | None = None
        self._communicator = Communicator(port, start_limit, limit, host)
        self.port = self._communicator.port
        try:
            with self._convert_errors():
                if program:
                    command = [str(program.absolute()), "--mlagents-port", str(self.port), *arguments]
                    self._process = UnityProcess(command, log)
                self._perform_handshake(seed, areas)
        except EnvironmentCrashed as error:
            raise EnvironmentStartError(str(error)) from error

    @property
    def behavior_specs(self) -> Mapping[str, Any]:
        """Return the BehaviorSpec of each behavior that has appeared, with images [channels, rows, columns]."""
        return {name: decoder.spec for name, decoder in self._decoders.items()}

    def list_compressed(self, name: str) -> list[bool]:
        """Return, for each sensor of a behavior, whether it sends compressed images."""
        return self._decoders[name].compressed

    def reset(self) -> None:
        """Reset all episodes."""
        self._actions.clear()
        self._exchange(api.RESET)

    def step(self) -> None:
        """Step until some agent requests a decision. Raise ValueError if an agent that awaits a decision got none."""
        for name, (decisions, _) in self._steps.items():
            if len(decisions) and name not in self._actions:
                raise ValueError(f"{len(decisions)} agents of {name!r} wait for an action")
        self._exchange(api.STEP)

    def get_steps(self, name: str) -> tuple[Any, Any]:
        """Return DecisionSteps and TerminalSteps of a behavior; their observations are valid until the next step."""
        return self._steps[name]

    def set_actions(self, name: str, action: Any) -> None:
        """Set the ActionTuple for the agents of a behavior's DecisionSteps, in their order.

        Raises:
            ValueError: If the actions have another shape.
        """
        spec, agents = self._decoders[name].spec.action_spec, len(self._steps[name][0])
        shapes = (agents, spec.continuous_size), (agents, spec.discrete_size)
        parts = [
            np.zeros(shape) if part is None else part
            for part, shape in zip((action.continuous, action.discrete), shapes, strict=True)
        ]
        given_shapes = tuple(part.shape for part in parts)
        if given_shapes != shapes:
            raise ValueError(f"actions of {name!r} are of shapes {shapes}, not {given_shapes}")
        self._actions[name] = parts

    def close(self) -> None:
        """End the simulation, and the player with all its processes. A second call does nothing."""
        self._close(at_once=False)

    def __enter__(self) -> UnityClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform_handshake(self, seed: int, areas: int) -> None:
        inputs = api.UnityInputProto()
        inputs.rl_initialization_input.CopyFrom(
            api.UnityRLInitializationInputProto(
                seed=seed,
                communication_version=API_VERSION,
                package_version=api.__version__,
                capabilities=api.UnityEnvironment._get_capabilities_proto(),
                num_areas=areas,
            )
        )
        output = self._communicator.initialize(inputs, self._check_process).rl_initialization_output
        version = output.communication_version
        if version.partition(".")[0] != API_VERSION.partition(".")[0]:
            raise EnvironmentStartError(f"uses version {version or '(none)'} of ML-Agents' protocol, not {API_VERSION}")
        if not output.capabilities.hybridActions:
            raise EnvironmentStartError(
                f"was built with version {output.package_version} of ML-Agents' package, which is older than 2.0"
            )

    def _exchange(self, command: int) -> None:
        inputs = api.UnityInputProto()
        inputs.rl_input.command = command
        inputs.rl_input.side_channel = bytes(self._channels.generate_side_channel_messages())
        for name, (continuous_parts, discrete_parts) in self._actions.items():
            agents = inputs.rl_input.agent_actions[name].value
            for continuous, discrete in zip(continuous_parts.tolist(), discrete_parts.tolist(), strict=True):
                agents.add(continuous_actions=continuous, discrete_actions=discrete)
        self._actions.clear()
        with self._convert_errors():
            output = self._communicator.exchange(inputs, self._check_process)
            if output is None:
                raise PlayerQuit("quit")
            self._read_output(output)

    def _read_output(self, output: Any) -> None:
        agents = output.rl_output.agentInfos
        for parameters in output.rl_initialization_output.brain_parameters:
            name = parameters.brain_name
            if name not in self._decoders and name in agents and agents[name].value:
                self._decoders[name] = Decoder(name, parameters, agents[name].value[0])
        self._steps = {
            name: decoder.decode(agents[name].value if name in agents else ())
            for name, decoder in self._decoders.items()
        }
        self._channels.process_side_channel_message(output.rl_output.side_channel)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Close the client on any error, and raise the error as one line that names the player."""
        try:
            yield
        except SimulatorError as error:
            crashed = isinstance(error, EnvironmentCrashed) and not isinstance(error, PlayerQuit)
            last_output = self._process.last_lines() if self._process and crashed else ""
            self._close(at_once=not isinstance(error, PlayerQuit))
            raise type(error)(f"{self.name} {error}{last_output}") from error
        except BaseException as error:
            self._close(at_once=True)
            if not isinstance(error, Exception):
                raise
            raise EnvironmentCrashed(
                f"{self.name} sent a message that cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _check_process(self) -> None:
        exit_reason = self._process.get_exit_reason() if self._process else None
        if exit_reason:
            raise EnvironmentCrashed(exit_reason)

    def _close(self, at_once: bool) -> None:
        self._communicator.close()
        if self._process:
            self._process.close(at_once)
