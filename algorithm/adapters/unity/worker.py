"""The process of one scene: it holds the connection, and its end is the end of the player."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from algorithm.adapters.process_setup import prepare_worker
from algorithm.adapters.unity.behavior import BehaviorReader
from algorithm.adapters.unity.curriculum import Value
from algorithm.adapters.unity.lanes import Batch
from algorithm.adapters.unity.launch import LaunchConfig, SceneTick

MAX_IDLE_TICKS = 1000  # ticks in a row in which no agent asks for anything


def run_worker(pipe: Connection, launch: LaunchConfig, number: int, seed: int, parameters: Mapping[str, Value]) -> None:
    """Open a scene and answer for it until the other end of `pipe` is closed.

    What is sent is a Tick for the start and for each ({behavior: actions [n, size]}, changed parameters) received, and
    a Gone last, where it breaks.
    """
    prepare_worker()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the player too
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from algorithm.adapters.unity import simulation  # the client is imported here, where it is used, and nowhere else

    scene = None
    try:
        scene = simulation.Simulation(launch, number, seed, parameters)
        session = SceneSession(scene)
        pipe.send(session.start())
        while True:
            pipe.send(session.step(*pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody asks any more
    except Exception as error:  # whatever a scene can break with
        with suppress(OSError):
            pipe.send(simulation.make_player_exited(error))
    finally:
        if scene is not None:
            scene.close()


def _exit_with_parent() -> None:
    """However the process that asked for this one ends; the player's keeper notices the end of this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class SceneSession:
    """One open scene and its behaviors."""

    def __init__(self, scene: Any):
        self.scene = scene
        self.behaviors: dict[str, BehaviorReader] = {}

    def start(self) -> SceneTick:
        """Start all episodes; the first tick in which an agent asks for a decision.

        Raises RuntimeError where none ever does.
        """
        self.scene.reset()
        for _ in range(MAX_IDLE_TICKS):
            tick = self._read_tick()
            if any(len(decisions) for decisions, _ in tick.batches.values()):
                tick.agent_specs = {name: behavior.agent_specs for name, behavior in self.behaviors.items()}
                return tick
            self.scene.step()
        raise RuntimeError(f"no agent asked for a decision in {MAX_IDLE_TICKS} ticks; has one a Decision Requester?")

    def step(self, actions: Mapping[str, Any], parameters: Mapping[str, Value]) -> SceneTick:
        """Execute the actions of the agents that the last tick asked about, in its order."""
        self.scene.set_parameters(parameters.items())
        for name, behavior_actions in actions.items():
            self.scene.set_actions(name, *self.behaviors[name].to_unity_actions(behavior_actions))
        self.scene.step()
        return self._read_tick()

    def _read_tick(self) -> SceneTick:
        tick = SceneTick({}, statistics=self.scene.statistics())
        for name in self.scene.behavior_names:
            if name not in self.behaviors:
                self.behaviors[name] = self.scene.make_reader(name)
                tick.agent_specs[name] = self.behaviors[name].agent_specs
            tick.batches[name] = self._read_batches(name)
        return tick

    def _read_batches(self, name: str) -> tuple[Batch, Batch]:
        decisions, terminals = self.scene.get_steps(name)
        behavior = self.behaviors[name]
        return behavior.read_decisions(decisions), behavior.read_terminals(terminals)
