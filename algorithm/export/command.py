"""The command `--export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from algorithm.export.export import ExportFailed, ExportResult, export_roles
from algorithm.export.file import BARRACUDA, OPSET
from algorithm.runs.session import find_run
from algorithm.runs.torch_setup import configure_torch


def run_export(options: argparse.Namespace, log: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Export the run that `options` name into its folder; the record for scripts, and the violations of each role that
    has any.

    `log` gets a line for each file, and one for each violation. Raises what `export` raises.
    """
    configure_torch()
    folder, settings = find_run(options, log)
    checkpoint = folder.find_checkpoint(options.ckpt, log)
    log(f"exporting {folder} after {checkpoint.counters.env_steps:,} env steps")
    results = list(
        export_roles(settings, folder, checkpoint, folder.given_path, BARRACUDA if options.barracuda else OPSET)
    )
    failed = {result.role: result.violations for result in results if isinstance(result, ExportFailed)}
    for result in results:
        for line in result.violations if isinstance(result, ExportFailed) else [str(result)]:
            log(line)
    record = {
        "run": folder.given_path.as_posix(),
        "exports": [result.to_record() for result in results if isinstance(result, ExportResult)],
        "violations": failed,
    }
    return record, failed
