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

from algorithm.adapters.unity.behavior import Behavior
from algorithm.adapters.unity.curriculum import Value
from algorithm.adapters.unity.lanes import Batch
from algorithm.adapters.unity.launch import Launch, Tick
from algorithm.adapters.worker_setup import prepare_helper

PATIENCE = 1000  # ticks in a row in which no agent asks for anything


def serve(pipe: Connection, launch: Launch, number: int, seed: int, parameters: Mapping[str, Value]) -> None:
    """Open a scene and answer for it until the other end of `pipe` is closed.

    What is sent is a Tick for the start and for each ({behavior: actions [n, size]}, changed parameters) received, and
    a Gone last, where it breaks.
    """
    prepare_helper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the player too
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from algorithm.adapters.unity import simulation  # the client is imported here, where it is used, and nowhere else

    scene = None
    try:
        scene = simulation.Simulation(launch, number, seed, parameters)
        served = Served(scene)
        pipe.send(served.begin())
        while True:
            pipe.send(served.step(*pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody asks any more
    except Exception as error:  # whatever a scene can break with
        with suppress(OSError):
            pipe.send(simulation.gone(error))
    finally:
        if scene is not None:
            scene.close()


def _end_with_parent() -> None:
    """However the process that asked for this one ends; the player's keeper notices the end of this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class Served:
    """One open scene and its behaviors."""

    def __init__(self, scene: Any):
        self.scene = scene
        self.behaviors: dict[str, Behavior] = {}

    def begin(self) -> Tick:
        """Start all episodes; the first tick in which an agent asks for a decision.

        Raises RuntimeError where none ever does.
        """
        self.scene.reset()
        for _ in range(PATIENCE):
            tick = self._look()
            if any(len(decided) for decided, _ in tick.batches.values()):
                tick.offers = {name: behavior.offer for name, behavior in self.behaviors.items()}
                return tick
            self.scene.step()
        raise RuntimeError(f"no agent asked for a decision in {PATIENCE} ticks; has one a Decision Requester?")

    def step(self, actions: Mapping[str, Any], parameters: Mapping[str, Value]) -> Tick:
        """Execute the actions of the agents that the last tick asked about, in its order."""
        self.scene.tell(parameters.items())
        for name, chosen in actions.items():
            self.scene.act(name, *self.behaviors[name].actions(chosen))
        self.scene.step()
        return self._look()

    def _look(self) -> Tick:
        tick = Tick({}, statistics=self.scene.statistics())
        for name in self.scene.names:
            if name not in self.behaviors:
                self.behaviors[name] = self.scene.behavior(name)
                tick.offers[name] = self.behaviors[name].offer
            tick.batches[name] = self._batches(name)
        return tick

    def _batches(self, name: str) -> tuple[Batch, Batch]:
        decided, ended = self.scene.look(name)
        behavior = self.behaviors[name]
        return behavior.decided(decided), behavior.ended(ended)
