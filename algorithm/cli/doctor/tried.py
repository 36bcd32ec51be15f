"""Checks that try something in a subprocess: those of the adapters, and an export to ONNX."""

from __future__ import annotations

from collections.abc import Iterator

from algorithm.adapters.adapter import SimulatorError, StartCheck
from algorithm.cli.doctor.check import MISSING, OK, Check, Outcome
from algorithm.cli.doctor.requirements import check_installed, read_setup
from algorithm.cli.doctor.subprocess_probe import run_in_subprocess
from algorithm.config.registry import ADAPTERS, find_class
from algorithm.program import get_install_command


def list_adapter_checks() -> Iterator[Check]:
    """Yield the checks of every adapter that is installed."""
    for name in ADAPTERS:
        try:
            adapter_class = find_class("env_type", name)
        except Exception:
            # A broken package may raise anything when it is imported, for example ValueError for another binary version
            # of numpy; the checks of the packages report it.
            continue
        yield from map(make_adapter_check, adapter_class.list_start_checks(None))


def make_adapter_check(check: StartCheck) -> Check:
    """Return a check of an adapter as one of the doctor's: it is missing where it raises SimulatorError."""

    def run() -> Outcome:
        if check.in_subprocess:
            return OK, run_in_subprocess(f"{check.run.__module__}:{check.run.__qualname__}")
        try:
            return OK, check.run()
        except SimulatorError as error:
            return MISSING, str(error)

    return Check(check.name, run)


def make_onnx_check() -> Check:
    """Return the check of an export: a file is written from torch, and run by onnxruntime."""
    return Check("onnx round trip", _check_round_trip)


def _check_round_trip() -> Outcome:
    """Export if the extra onnx is installed completely."""
    state, line = check_installed(read_setup()["extras_require"]["onnx"], get_install_command("onnx"))
    return (OK, run_in_subprocess("algorithm.export.export:run_round_trip")) if state == OK else (state, line)
