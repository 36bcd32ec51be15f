"""Standard streams that nobody reads any more, or that were closed before this process began."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

STREAM_NAMES = ("stdout", "stderr")


class FaultTolerantStream:
    """A text stream that drops text that cannot be written, instead of raising OSError.

    Writing fails when the reader has exited (`| head -1`), when the terminal was closed, and when the disk is full.
    Characters that the encoding of the stream does not have are written as escape codes.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the standard stream of the same name in the receiving process."""
        name = next(name for name in STREAM_NAMES if getattr(sys, name) is self)
        return getattr, (sys, name)

    def write(self, text: str) -> int:
        """Write `text` if possible and return its length."""
        with suppress(OSError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream if possible."""
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        """Close the stream."""
        with suppress(OSError):
            self._stream.close()


def open_closed_streams() -> None:
    """Replace each standard stream that was closed before this process began by one that drops its text.

    Its descriptor is taken, too: otherwise the next file that is opened would get it, with what native code prints.
    """
    for number, name in enumerate(STREAM_NAMES, 1):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.dup2(descriptor, number)
            stream = os.fdopen(number, "w", encoding="utf-8")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def tolerate_closed_streams() -> None:
    """Make the standard streams of this process fault-tolerant, except those that a program has replaced."""
    for name in STREAM_NAMES:
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, FaultTolerantStream(stream))
