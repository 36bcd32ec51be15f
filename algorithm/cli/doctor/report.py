"""All checks, one line each, or a document for scripts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from algorithm.cli.doctor.check import BROKEN, MISSING, TIMEOUT, Check, Finding, described
from algorithm.cli.doctor.machine import machine_checks, port_checks
from algorithm.cli.doctor.requirements import core_checks, extra_check, extras
from algorithm.cli.doctor.tried import handshake_check, onnx_check
from algorithm.cli.output import Output
from algorithm.errors import UserError


class Unwell(Exception):
    """Something that was asked for cannot work."""


def examine(options: argparse.Namespace, output: Output) -> None:
    """Look at everything, or at what a run in the environment's folder needs; the lines, and the result for scripts.

    Raises UserError where the settings cannot be, Unwell where something is broken or takes too long.
    """
    checks = [*core_checks(), *machine_checks(), *(_of_run(options) if options.env else _of_all())]
    width = max(len(check.name) for check in checks)
    findings: list[Finding] = []
    output.result = {"environment": options.env, "checks": []}
    for check in checks:
        finding = check()
        findings.append(finding)
        output.result["checks"].append(asdict(finding))
        output.plain(f"{finding.name:<{width}}  {finding.state:<{len(MISSING)}}  {finding.line}")
    trouble = [
        f"{state}: {', '.join(found)}"
        for state in (BROKEN, TIMEOUT)
        if (found := [finding.name for finding in findings if finding.state == state])
    ]
    if trouble:
        raise Unwell(f"{'; '.join(trouble)}; the lines above say what to do")
    output.plain(f"all that {options.env} needs is there" if options.env else "nothing is broken")


def _of_all() -> Iterator[Check]:
    yield from port_checks()
    yield from map(extra_check, extras())
    yield handshake_check()
    yield onnx_check()


def _of_run(options: argparse.Namespace) -> list[Check]:
    """Those of a run; one that fails where a package is missing that settings need."""
    try:
        from algorithm.cli.doctor.start import start_checks

        return list(start_checks(options))
    except UserError:
        raise
    except Exception as error:  # whatever a broken package raises
        seen = BROKEN, f"the settings cannot be read: {described(error)}"
        return [Check("settings", lambda: seen)]
