"""The command `--export`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from algorithm.export.export import ExportFailed, ExportResult, export_roles
from algorithm.runs.session import RunRequest, find_run
from algorithm.runs.torch_setup import configure_torch


def run_export(
    request: RunRequest, ckpt: str | None, opset: int, log: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Export a run into its folder.

    Args:
        request: the run.
        ckpt: env steps or folder of a checkpoint; None for the best.
        opset: the ONNX operator set.
        log: receives a line for each file, and one for each violation.

    Returns:
        The record for scripts, and {role: violations} of the roles that were not exported.
    """
    configure_torch()
    folder, settings = find_run(request, log)
    checkpoint = folder.find_checkpoint(ckpt, log)
    log(f"exporting {folder} after {checkpoint.counters.env_steps:,} env steps")
    results = list(export_roles(settings, folder, checkpoint, folder.given_path, opset))
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
