"""The command doctor: it runs all checks and prints a line for each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from algorithm.cli.commands import SETTINGS, Command, add_environment, add_options, add_setting_options, spell
from algorithm.cli.output import Output
from algorithm.errors import UserError
from algorithm.tools.doctor.check import BROKEN, MISSING, TIMEOUT, Check, describe_error
from algorithm.tools.doctor.installation import (
    MACHINE_CHECKS,
    list_adapter_checks,
    list_core_checks,
    list_extras,
    make_extra_check,
    make_onnx_check,
)


class DoctorFailed(Exception):
    """An error for a check that has found something broken."""


class DoctorCommand(Command):
    """The command that checks the machine and all packages, or what a run in an environment folder needs."""

    help = "check this machine, or the requirements of an environment folder, with advice for each problem"
    needs_folder = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment folder; without one, the machine is checked", required=False)
        add_options(parser, "config")
        add_setting_options(parser, "nn", "editor", "port")

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for an option that sets a setting, without an environment folder."""
        for name in ("config", "set", *SETTINGS):
            if options.env is None and getattr(options, name, None) is not None:
                raise UserError(f"{spell(name)} needs an environment folder: doctor ENV {spell(name)} ...")

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Run all checks, and print a line for each.

        Raises:
            UserError: The settings are not valid.
            DoctorFailed: A check found something broken, or took too long.
        """
        checks = [*list_core_checks(), *MACHINE_CHECKS]
        if options.env:
            checks += _list_run_checks(options)
        else:
            checks += [*map(make_extra_check, list_extras()), *list_adapter_checks(), make_onnx_check()]
        width = max(len(check.name) for check in checks)
        output.result = {"environment": options.env, "checks": []}
        problems: dict[str, list[str]] = {BROKEN: [], TIMEOUT: []}
        for check in checks:
            finding = check()
            problems.get(finding.state, []).append(finding.name)
            output.result["checks"].append(asdict(finding))
            output.log_plain(f"{finding.name:<{width}}  {finding.state:<{len(MISSING)}}  {finding.line}")
        lines = [f"{state}: {', '.join(names)}" for state, names in problems.items() if names]
        if lines:
            raise DoctorFailed(f"{'; '.join(lines)}; the lines above say what to do")
        output.log_plain(f"all that {options.env} needs is there" if options.env else "nothing is broken")


def _list_run_checks(options: argparse.Namespace) -> Iterator[Check]:
    """Yield the checks of a run, or one that fails if a package is missing without which settings are not read."""
    try:
        from algorithm.tools.doctor.trial import list_start_checks

        yield from list_start_checks(options)
    except UserError:
        raise
    except Exception as error:  # a broken package may raise anything
        message = f"the settings cannot be read: {describe_error(error)}"

        def fail() -> str:
            raise UserError(message)

        yield Check("settings", fail)
