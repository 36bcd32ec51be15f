"""The table of commands: a feature can be removed by deleting its package and its line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from algorithm.runs.commands import Command

COMMANDS: Mapping[str, str] = {
    "list": "algorithm.tools.reports.commands:ListCommand",
    "report": "algorithm.tools.reports.commands:ReportCommand",
    "compare": "algorithm.tools.reports.commands:CompareCommand",
    "gallery": "algorithm.tools.reports.commands:GalleryCommand",
    "tune": "algorithm.tools.tune.command:TuneCommand",
    "init": "algorithm.tools.init.command:InitCommand",
    "doctor": "algorithm.tools.doctor.command:DoctorCommand",
    "export": "algorithm.tools.export.command:ExportCommand",
    "import-mlagents": "algorithm.tools.mlagents.command:ImportCommand",
}
# Training and playing, which have no first word.
TRAIN, PLAY = "algorithm.cli.training:TrainCommand", "algorithm.cli.playing:PlayCommand"


def load_command(path: str) -> Command:
    """Import a command, given as `module:Class`."""
    module, _, name = path.partition(":")
    command: Command = getattr(import_module(module), name)()
    return command
