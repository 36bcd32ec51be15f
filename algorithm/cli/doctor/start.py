"""What the settings of an environment's folder ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from algorithm.cli.doctor.check import BROKEN, MISSING, TIMEOUT, Check, Outcome
from algorithm.cli.doctor.requirements import list_extras, make_extra_check
from algorithm.cli.doctor.subprocess_probe import SubprocessFailed, SubprocessTimeout, run_in_subprocess
from algorithm.cli.doctor.tried import make_adapter_check, make_onnx_check
from algorithm.runs.make_env import find_adapter_class, make_adapter, make_env_config
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
    adapter_class = find_adapter_class(settings)
    if adapter_class.starts_programs:
        # The adapter raises an error for settings that do not fit, and starts nothing before its first reset.
        make_adapter(settings, RunFolder(find_environment_folder(options.env)), settings.base.n_envs)
        config = make_env_config(settings, settings.base.env_name or "", settings.base.n_envs)
        for check in adapter_class.list_start_checks(config):
            yield make_adapter_check(check).as_required()
    else:
        for name in ("environment", "agent", "replay", "checkpoints"):
            yield trial_run.make_check(name)


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
