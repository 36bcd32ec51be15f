"""Errors, and ends of processes, as one line of text; and text of foreign files, made safe for a terminal or a page."""

from __future__ import annotations

import re
import signal
import sysconfig
import traceback
from pathlib import Path

MAX_LENGTH = 400  # characters of a message; some packages append the stack of their native code
# Code that users do not write: this package, the standard library, installed packages.
FOREIGN_FOLDERS = {
    Path(__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
}
# Codes of a terminal, except line breaks and tabs, and marks that reverse the direction of text.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LOGIN = re.compile(r"(?<=://)[^\s/]*@")  # name and password, or a token, in an address


def summarize_error(error: BaseException) -> str:
    """Return the type and the message of an error; without a message its type, file and line."""
    kind, text = type(error).__name__, clean_text(" ".join(str(error).split()))
    if text:
        return f"{kind}: {text if len(text) <= MAX_LENGTH else f'{text[:MAX_LENGTH]} ...'}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind} in {frames[-1].filename}, line {frames[-1].lineno}" if frames else kind


def summarize_with_place(error: BaseException) -> str:
    """Return the type and the message of an error, and the file and line of the user's code that it came from.

    The place is the innermost one outside of `FOREIGN_FOLDERS`, of the error or of its cause; if all are inside, the
    innermost one.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    if not frames:
        return summarize_error(error)
    causes = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    own = [
        frame
        for frame in [*frames, *causes]
        if not frame.filename.startswith("<") and FOREIGN_FOLDERS.isdisjoint(Path(frame.filename).resolve().parents)
    ]
    frame = (own or frames)[-1]
    summary = summarize_error(error) if str(error) else type(error).__name__
    return f"{summary} ({frame.filename}, line {frame.lineno})"


def is_stop(error: BaseException) -> bool:
    """Return whether an exception requests the end of the process: Ctrl-C, or a signal that this package raises.

    Every other exception comes from code that fails, also one that is no Exception.
    """
    is_own = not isinstance(error, Exception) and type(error).__module__.startswith("algorithm.")
    return is_own or isinstance(error, KeyboardInterrupt | GeneratorExit)


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error, which ends with its summary."""
    lines = "".join(traceback.format_exception(error))
    return lines if str(error) else f"{lines}{summarize_error(error)}"


def describe_exit(code: int) -> str:
    """Return how a process ended, as the predicate of a sentence.

    Args:
        code: Exit status; a negative one is the number of a signal, as in `subprocess`.
    """
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"crashed with signal {names.get(-code, -code)}"
    return f"ended with exit code {code}" + (f" ({code:#x})" if code > 255 else "")


def clean_text(text: str) -> str:
    """Return a text without control characters, which a terminal would obey, and without passwords in addresses."""
    return redact_logins(remove_control_characters(text))


def remove_control_characters(text: str) -> str:
    """Return a text without control characters; line breaks and tabs stay."""
    return CONTROL_CHARACTERS.sub("", text)


def redact_logins(text: str) -> str:
    """Return a text with *** instead of name and password in each address, as in https://***@host."""
    return LOGIN.sub("***@", text)


class LearnerUnreachable(Exception):
    """Another learner has ended, or did not make the call that this learner waits for in time."""


class UserError(Exception):
    """An error that the user can correct; its message is one line that states what is wrong, and where."""
