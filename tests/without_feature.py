"""A plugin of pytest that hides a feature, as if its package and its lines in the tables had been removed.

A test that starts a command of the feature is skipped.
"""

import os
import sys

import pytest

FEATURE = f"algorithm.{os.environ['HIDDEN_FEATURE']}"
sys.modules[FEATURE] = None

from algorithm.cli import main as command_line  # noqa: E402
from algorithm.cli import parser  # noqa: E402
from algorithm.config import registry  # noqa: E402

HIDDEN = {name for name, path in parser.COMMANDS.items() if path.startswith(f"{FEATURE}.")}
for table in (parser.COMMANDS, registry.RUN_TOOLS, registry.ADAPTERS):
    for name in [name for name, path in table.items() if path.startswith(f"{FEATURE}.")]:
        del table[name]
start = command_line.main


def start_or_skip(arguments=None):
    """Start a command; skip the test if it is hidden."""
    if arguments and arguments[0] in HIDDEN:
        pytest.skip(f"starts {arguments[0]}")
    return start(arguments)


command_line.main = start_or_skip
