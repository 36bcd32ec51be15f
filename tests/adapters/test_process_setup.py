"""Standard streams whose reader has exited, and processes whose parent is killed while they import."""

import gc
import os
import subprocess
import sys
from contextlib import suppress

import cloudpickle
import pytest

from algorithm.adapters.process_setup import PROCESSES, start_garbage_collection
from algorithm.adapters.standard_streams import FaultTolerantStream, tolerate_closed_streams

# A parent whose child imports something that takes a minute, and how the child is started.
PARENT = """
import multiprocessing, sys, time

if __name__ == "__mp_main__":  # in the child
    print("importing", flush=True)
    time.sleep(60)

def work():
    pass

if __name__ == "__main__":
    from algorithm.adapters.process_setup import CONTEXT_NAME, PROCESSES
    context = {context}
    context.Process(target=work, name="it's a \\"child\\"").start()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
@pytest.mark.parametrize("context", ["PROCESSES", "multiprocessing.get_context(CONTEXT_NAME)"])
def test_a_process_that_imports_ends_when_its_parent_is_killed(context, tmp_path):
    (tmp_path / "parent.py").write_text(PARENT.format(context=context))
    parent = subprocess.Popen([sys.executable, "parent.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout.readline() == b"importing\n"
    parent.kill()
    parent.communicate(timeout=40)  # until the child, which has the same output, has ended


def report_collection(pipe):
    before = gc.isenabled()
    start_garbage_collection()
    pipe.send((before, gc.isenabled(), gc.get_freeze_count() > 1000))


@pytest.mark.skipif(sys.platform != "linux", reason="the start of a process is changed on Linux only")
def test_a_process_collects_no_garbage_until_it_has_imported_what_it_needs():
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=report_collection, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == (False, True, True)
    process.join()


@pytest.fixture
def lost():
    """Yield a stream whose reader has exited."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    yield stream
    with suppress(OSError):
        stream.close()


def test_text_that_cannot_be_written_is_dropped(lost):
    with pytest.raises(OSError):
        print("a line", file=lost, flush=True)
    stream = FaultTolerantStream(lost)
    for _ in range(3):
        print("a line " * 5000, file=stream, flush=True)
    assert stream.fileno() == lost.fileno() and not stream.isatty()
    stream.close()


@pytest.mark.parametrize(
    ("encoding", "written"), [("latin-1", b"\xe9 \\u03a9 \\udc80"), ("utf-8", "é Ω \\udc80".encode())]
)
def test_text_that_cannot_be_encoded_is_escaped(encoding, written, tmp_path):
    with (tmp_path / "file").open("w", encoding=encoding) as file:
        print("é Ω \udc80", end="", file=FaultTolerantStream(file))
    assert (tmp_path / "file").read_bytes() == written


def test_only_the_streams_of_the_process_become_fault_tolerant(monkeypatch, lost):
    monkeypatch.setattr(sys, "__stdout__", lost)
    monkeypatch.setattr(sys, "stdout", lost)
    before = sys.stderr  # replaced by pytest
    for _ in range(2):
        tolerate_closed_streams()
        assert sys.stdout._stream is lost and sys.stderr is before
    print("a line", flush=True)


def test_a_function_that_refers_to_a_stream_is_unpickled_with_the_stream_of_its_process(monkeypatch, lost):
    monkeypatch.setattr(sys, "stdout", FaultTolerantStream(lost))

    def function(stream=sys.stdout):
        return stream

    content = cloudpickle.dumps(function)
    monkeypatch.setattr(sys, "stdout", os.devnull)
    assert cloudpickle.loads(content)() is os.devnull
