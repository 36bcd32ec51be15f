"""What the settings of an environment's folder ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from algorithm.adapters.unity.launch import Launch
from algorithm.adapters.unity.os_process import find_player
from algorithm.adapters.unity.ports import EDITOR_PORT
from algorithm.cli.doctor.check import BROKEN, MISSING, OK, TIMEOUT, Check, Seen
from algorithm.cli.doctor.machine import ports
from algorithm.cli.doctor.requirements import extra_check, extras
from algorithm.cli.doctor.subprocess_probe import Lost, TimedOut, ask
from algorithm.cli.doctor.tried import handshake_check, onnx_check
from algorithm.runs.make_env import launch_of, make_adapter, of_unity
from algorithm.runs.run_folder import RunFolder, environment_folder
from algorithm.runs.session import planned


def start_checks(options: argparse.Namespace) -> Iterator[Check]:
    """Those of a run that the command line asks for. Raises UserError where it is told what cannot be."""
    ((_, settings),) = planned(options)
    start = Start(options)
    extra = settings.base.env_type.casefold().replace("_", "-")
    if extra in extras():
        yield extra_check(extra).asked()
    if settings.base.export != "never":
        yield extra_check("onnx").asked()
        yield onnx_check().asked()
    yield start.check("device")
    if of_unity(settings):
        # Nothing is started yet, but what cannot be is told.
        make_adapter(settings, RunFolder(environment_folder(options.env)), settings.base.n_envs)
        yield handshake_check().asked()
        yield from _scene_checks(launch_of(settings), settings.base.n_envs)
    else:
        for name in ("environment", "agent", "replay", "checkpoints"):
            yield start.check(name)


def _scene_checks(launch: Launch, copies: int) -> Iterator[Check]:
    if launch.path is None:
        numbers = [launch.port or EDITOR_PORT]
        instead = "give --port, and set it in Unity too"
    else:
        yield Check("player", partial(_player, launch.path))
        if launch.port is None:
            return
        numbers = range(launch.port, launch.port + copies + 1)  # one more is evaluated in
        instead = "give another base_config.unity_args.base_port, or null for any that are free"
    yield Check("ports", partial(ports, numbers, instead)).asked()


def _player(path: str) -> Seen:
    return OK, str(find_player(Path(path)))


class Start:
    """The start of a run in another process, which is asked once for all that it comes to."""

    def __init__(self, options: argparse.Namespace):
        self._options = vars(options)
        self._seen: dict[str, Seen] | None = None

    def check(self, name: str) -> Check:
        """One thing that `try_out` looks at."""
        return Check(name, partial(self._of, name))

    def _of(self, name: str) -> Seen:
        if self._seen is None:
            try:
                self._seen = ask("algorithm.cli.doctor.trial:try_out", self._options)
            except TimedOut as error:
                self._seen = {"device": (TIMEOUT, f"the start of a run: {error}")}
            except Lost as error:
                self._seen = {"device": (BROKEN, f"the start of a run fails: {error}")}
        return self._seen.get(name, (MISSING, "not looked at, since what stands before it does not work"))
