"""Errors in one line."""

from __future__ import annotations

import traceback

MAX_LENGTH = 400  # characters of a text; some packages append the frames of their native code


def summarize_error(error: BaseException) -> str:
    """Return kind and text of an error; one without text is described by the file and line that raised it."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if text:
        return f"{kind}: {text if len(text) <= MAX_LENGTH else f'{text[:MAX_LENGTH]} ...'}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind} in {frames[-1].filename}, line {frames[-1].lineno}" if frames else kind


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error, whose last line is its summary."""
    lines = "".join(traceback.format_exception(error))
    return lines if str(error) else f"{lines}{summarize_error(error)}"


class UserError(Exception):
    """What the user must correct: one line that names it."""
