"""Streams that nobody reads any more."""

import os
import sys
from contextlib import suppress

import cloudpickle
import pytest

from algorithm.adapters.standard_streams import FaultTolerantStream, tolerate_closed_streams


@pytest.fixture
def lost():
    """A stream whose reader has exited."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    yield stream
    with suppress(OSError):
        stream.close()


def test_what_nobody_reads_is_dropped(lost):
    with pytest.raises(OSError):
        print("a line", file=lost, flush=True)
    stream = FaultTolerantStream(lost)
    for _ in range(3):
        print("a line " * 5000, file=stream, flush=True)
    assert stream.fileno() == lost.fileno() and not stream.isatty()
    stream.close()


def test_the_streams_of_the_process_survive_and_no_others(monkeypatch, lost):
    monkeypatch.setattr(sys, "__stdout__", lost)
    monkeypatch.setattr(sys, "stdout", lost)
    before = sys.stderr  # which pytest has replaced
    for _ in range(2):
        tolerate_closed_streams()
        assert sys.stdout._stream is lost and sys.stderr is before
    print("a line", flush=True)


def test_a_function_that_holds_one_goes_to_another_process(monkeypatch, lost):
    monkeypatch.setattr(sys, "stdout", FaultTolerantStream(lost))

    def function(stream=sys.stdout):
        return stream

    content = cloudpickle.dumps(function)
    monkeypatch.setattr(sys, "stdout", os.devnull)
    assert cloudpickle.loads(content)() is os.devnull
