"""The exit status and the message of each kind of failure."""

from __future__ import annotations

from algorithm.errors import summarize_error
from algorithm.runs.user_code import find_user_error

# Exit status and line by the name of the exception, since most of their modules take a while to import.
STATUSES = {
    "UserError": (2, "{error}"),
    "DoctorFailed": (1, "{error}"),
    "UnsupportedEnvironment": (2, "{error}"),
    "EnvironmentStartError": (3, "{error}"),
    "EnvironmentCrashed": (1, "{error}"),
    "Diverged": (4, "{error}"),
    "CheckpointError": (1, "{error}"),
    "ExportFailed": (1, "{error}"),
    "OSError": (1, "{kind}: {error}"),
    "TerminalClosed": (129, "Hung up.{saved}"),
    "KeyboardInterrupt": (130, "Interrupted.{saved}"),
    "Terminated": (143, "Terminated.{saved}"),
    "MemoryError": (1, "not enough memory: {summary}"),
    "BaseException": (1, "{summary} (unexpected; --debug shows where it comes from)"),
}


def describe_end(error: BaseException, saved: str = "") -> tuple[int, str]:
    """Return the exit status and the message of what ended a command.

    Args:
        error: the exception that ended it.
        saved: a sentence on what was saved, for a command that was interrupted.
    """
    error = find_user_error(error)
    status, line = next(STATUSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STATUSES)
    return status, line.format(error=error, kind=type(error).__name__, summary=summarize_error(error), saved=saved)
