"""Text streams that survive a lost reader, as of `| head -1` or a closed terminal, and a full disk."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

STREAM_NAMES = ("stdout", "stderr")


class FaultTolerantStream:
    """A text stream that drops what cannot be written, instead of an OSError."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the standard stream of the process that receives this one, for example as a default argument."""
        name = next(name for name in STREAM_NAMES if getattr(sys, name) is self)
        return getattr, (sys, name)

    def write(self, text: str) -> int:
        """Write text; its length."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        """Close the stream."""
        with suppress(OSError):
            self._stream.close()


def tolerate_closed_streams() -> None:
    """Make the standard streams of this process survive, unless they were replaced."""
    for name in STREAM_NAMES:
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, FaultTolerantStream(stream))
