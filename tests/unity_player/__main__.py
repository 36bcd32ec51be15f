"""The command line of the scripted player, which accepts Unity's own arguments too."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.unity_player.faults import KINDS, Faults
from tests.unity_player.scene import Task
from tests.unity_player.tasks import Arrivals, BalanceBall, Duel, Escape, Grid, Hybrid, Staggered, TwoBehaviors

Make = Callable[[np.random.Generator, argparse.Namespace], Task]
TASKS: dict[str, Make] = {
    "arrivals": lambda rng, options: Arrivals(rng),
    "balance_ball": lambda rng, options: BalanceBall(rng),
    "duel": lambda rng, options: Duel(rng, options.late),
    "escape": lambda rng, options: Escape(rng),
    "grid": lambda rng, options: Grid(rng, options.agents, options.size, options.layout, options.png),
    "hybrid": lambda rng, options: Hybrid(rng),
    "staggered": lambda rng, options: Staggered(rng),
    "two_behaviors": lambda rng, options: TwoBehaviors(rng),
}


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the arguments of the launcher and of the trainer."""
    parser = argparse.ArgumentParser("python -m tests.unity_player", allow_abbrev=False)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--mlagents-port", type=int, required=True, help="5004 for a trainer that waits for the editor")
    parser.add_argument("--seed", type=int, help="of the task's own random numbers; a new one each time without it")
    parser.add_argument("--agents", type=int, default=4, help="in the grid")
    parser.add_argument("--size", type=int, default=84, help="pixels of the grid's camera")
    parser.add_argument("--layout", choices=("hwc", "chw"), default="chw", help="hwc is that of packages up to 2.x")
    parser.add_argument("--png", action="store_true", help="the grid's camera sends compressed images")
    parser.add_argument("--late", type=int, default=0, help="the tick at which the second team of duel appears")
    parser.add_argument("--fault", choices=KINDS, help="what goes wrong")
    parser.add_argument("--at", type=int, default=0, help="the tick at which it goes wrong")
    parser.add_argument("--chance", type=float, default=0.0, help="instead: its probability at every tick")
    parser.add_argument("--single", type=int, metavar="PORT", help="exit with 1 while another player holds this port")
    parser.add_argument("--slow", type=float, default=0.0, metavar="SECONDS", help="asleep in every tick")
    parser.add_argument("--record", type=Path, help="a file that receives each message of the trainer, in JSON lines")
    parser.add_argument("-logFile", type=Path, help="where Unity's log would be; errors go there")
    options, unity = parser.parse_known_args(words)
    options.unity = unity
    return options


def main(words: list[str]) -> int:
    """Play until the trainer sends a quit or disconnects, as a built player does."""
    options = parse(words)
    if options.record:
        with options.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"arguments": words}) + "\n")
    with contextlib.ExitStack() as stack:
        if options.logFile:
            log = stack.enter_context(options.logFile.open("a", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stderr(log))
        if options.single and not stack.enter_context(socket.socket()).connect_ex(("127.0.0.1", options.single)):
            print("another instance is running", file=sys.stderr)
            return 1
        if options.single:
            stack.enter_context(socket.create_server(("127.0.0.1", options.single)))
        return _play(options)


def _play(options: argparse.Namespace) -> int:
    from tests.unity_player.player import Player, api

    task = TASKS[options.task](np.random.default_rng(options.seed), options)
    faults = Faults(options.fault, options.at, options.chance, options.slow)
    try:
        Player(options.mlagents_port, task, faults, options.record).play()
    except api.grpc.RpcError as error:
        print(f"the trainer went away: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
