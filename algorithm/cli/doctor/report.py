"""All checks, one line each, or a document for scripts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from algorithm.cli.doctor.check import BROKEN, MISSING, TIMEOUT, Check, Finding, describe_error
from algorithm.cli.doctor.machine import list_machine_checks
from algorithm.cli.doctor.requirements import list_core_checks, list_extras, make_extra_check
from algorithm.cli.doctor.tried import list_adapter_checks, make_onnx_check
from algorithm.cli.output import Output
from algorithm.errors import UserError


class DoctorFailed(Exception):
    """Something that was asked for cannot work."""


def run_doctor(options: argparse.Namespace, output: Output) -> None:
    """Look at everything, or at what a run in the environment's folder needs; the lines, and the result for scripts.

    Raises UserError where the settings cannot be, Unwell where something is broken or takes too long.
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
    """Those of a run; one that fails where a package is missing that settings need."""
    try:
        from algorithm.cli.doctor.start import list_start_checks

        return list(list_start_checks(options))
    except UserError:
        raise
    except Exception as error:  # whatever a broken package raises
        outcome = BROKEN, f"the settings cannot be read: {describe_error(error)}"
        return [Check("settings", lambda: outcome)]
