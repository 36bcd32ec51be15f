"""The command `--doctor`: runs all checks and prints a line for each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from algorithm.cli.output import Output
from algorithm.errors import UserError
from algorithm.tools.doctor.check import BROKEN, MISSING, TIMEOUT, Check, Finding, describe_error
from algorithm.tools.doctor.machine import list_machine_checks
from algorithm.tools.doctor.requirements import (
    list_adapter_checks,
    list_core_checks,
    list_extras,
    make_extra_check,
    make_onnx_check,
)


class DoctorFailed(Exception):
    """An error for a check that has found something broken."""


def run_doctor(options: argparse.Namespace, output: Output) -> None:
    """Check the machine and all packages, or what a run in an environment folder needs.

    Args:
        options: the options of the command line; `env` is the environment, or None for everything.
        output: receives a line for each check, and the result for scripts.

    Raises:
        UserError: The settings are not valid.
        DoctorFailed: A check found something broken, or took too long.
    """
    checks = [
        *list_core_checks(),
        *list_machine_checks(),
        *(_list_run_checks(options) if options.env else _list_all_checks()),
    ]
    width = max(len(check.name) for check in checks)
    findings: list[Finding] = []
    output.result = {"environment": options.env, "checks": []}
    for check in checks:
        finding = check()
        findings.append(finding)
        output.result["checks"].append(asdict(finding))
        output.log_plain(f"{finding.name:<{width}}  {finding.state:<{len(MISSING)}}  {finding.line}")
    problems = [
        f"{state}: {', '.join(found)}"
        for state in (BROKEN, TIMEOUT)
        if (found := [finding.name for finding in findings if finding.state == state])
    ]
    if problems:
        raise DoctorFailed(f"{'; '.join(problems)}; the lines above say what to do")
    output.log_plain(f"all that {options.env} needs is there" if options.env else "nothing is broken")


def _list_all_checks() -> Iterator[Check]:
    yield from map(make_extra_check, list_extras())
    yield from list_adapter_checks()
    yield make_onnx_check()


def _list_run_checks(options: argparse.Namespace) -> list[Check]:
    """Return the checks of a run, or one failed check if a package is missing without which settings are not read."""
    try:
        from algorithm.tools.doctor.trial import list_start_checks

        return list(list_start_checks(options))
    except UserError:
        raise
    except Exception as error:  # a broken package may raise anything
        outcome = BROKEN, f"the settings cannot be read: {describe_error(error)}"
        return [Check("settings", lambda: outcome)]
