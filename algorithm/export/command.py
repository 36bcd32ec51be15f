"""The command `--export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from algorithm.export.export import Exported, ExportFailed, export
from algorithm.export.file import BARRACUDA, OPSET
from algorithm.runs.session import found
from algorithm.runs.torch_setup import prepare_process


def run(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Export the run that `options` name into its folder; the record for scripts, and the violations of each role that
    has any.

    `say` gets a line for each file, and one for each violation. Raises what `export` raises.
    """
    prepare_process()
    folder, settings = found(options, say)
    checkpoint = folder.checkpoint(options.ckpt, say)
    say(f"exporting {folder} after {checkpoint.counters.env_steps:,} env steps")
    results = list(export(settings, folder, checkpoint, folder.given, BARRACUDA if options.barracuda else OPSET))
    failed = {one.role: one.violations for one in results if isinstance(one, ExportFailed)}
    for one in results:
        for line in one.violations if isinstance(one, ExportFailed) else [str(one)]:
            say(line)
    record = {
        "run": folder.given.as_posix(),
        "exports": [one.record() for one in results if isinstance(one, Exported)],
        "violations": failed,
    }
    return record, failed
