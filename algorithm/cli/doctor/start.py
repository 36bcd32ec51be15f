"""What the settings of an environment's folder ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from algorithm.adapters.unity.launch import LaunchConfig
from algorithm.adapters.unity.os_process import find_player
from algorithm.adapters.unity.ports import EDITOR_PORT
from algorithm.cli.doctor.check import BROKEN, MISSING, OK, TIMEOUT, Check, Outcome
from algorithm.cli.doctor.machine import check_ports
from algorithm.cli.doctor.requirements import list_extras, make_extra_check
from algorithm.cli.doctor.subprocess_probe import SubprocessFailed, SubprocessTimeout, run_in_subprocess
from algorithm.cli.doctor.tried import make_onnx_check, make_self_test_check
from algorithm.runs.make_env import is_unity, make_adapter, make_launch_config
from algorithm.runs.run_folder import RunFolder, find_environment_folder
from algorithm.runs.session import plan_runs


def list_start_checks(options: argparse.Namespace) -> Iterator[Check]:
    """Those of a run that the command line asks for. Raises UserError where it is told what cannot be."""
    ((_, settings),) = plan_runs(options)
    trial_run = TrialRun(options)
    extra = settings.base.env_type.casefold().replace("_", "-")
    if extra in list_extras():
        yield make_extra_check(extra).as_required()
    if settings.base.export != "never":
        yield make_extra_check("onnx").as_required()
        yield make_onnx_check().as_required()
    yield trial_run.make_check("device")
    if is_unity(settings):
        # Nothing is started yet, but what cannot be is told.
        make_adapter(settings, RunFolder(find_environment_folder(options.env)), settings.base.n_envs)
        yield make_self_test_check().as_required()
        yield from _list_scene_checks(make_launch_config(settings), settings.base.n_envs)
    else:
        for name in ("environment", "agent", "replay", "checkpoints"):
            yield trial_run.make_check(name)


def _list_scene_checks(launch: LaunchConfig, n_envs: int) -> Iterator[Check]:
    if launch.path is None:
        numbers = [launch.port or EDITOR_PORT]
        advice = "give --port, and set it in Unity too"
    else:
        yield Check("player", partial(_check_player, launch.path))
        if launch.port is None:
            return
        numbers = range(launch.port, launch.port + n_envs + 1)  # one more is evaluated in
        advice = "give another base_config.unity_args.base_port, or null for any that are free"
    yield Check("ports", partial(check_ports, numbers, advice)).as_required()


def _check_player(path: str) -> Outcome:
    return OK, str(find_player(Path(path)))


class TrialRun:
    """The start of a run in another process, which is asked once for all that it comes to."""

    def __init__(self, options: argparse.Namespace):
        self._options = vars(options)
        self._outcomes: dict[str, Outcome] | None = None

    def make_check(self, name: str) -> Check:
        """One thing that `run_trial` looks at."""
        return Check(name, partial(self._get_outcome, name))

    def _get_outcome(self, name: str) -> Outcome:
        if self._outcomes is None:
            try:
                self._outcomes = run_in_subprocess("algorithm.cli.doctor.trial:run_trial", self._options)
            except SubprocessTimeout as error:
                self._outcomes = {"device": (TIMEOUT, f"the start of a run: {error}")}
            except SubprocessFailed as error:
                self._outcomes = {"device": (BROKEN, f"the start of a run fails: {error}")}
        return self._outcomes.get(name, (MISSING, "not looked at, since what stands before it does not work"))
