import signal
import threading

import pytest

from algorithm.training.signals import STOP_EXCEPTIONS, DeferredSignals, TerminalClosed, raise_on_stop_signals


@pytest.fixture(autouse=True)
def _not_ignored():
    """Set the handlers of signals as in a process without nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_EXCEPTIONS if number != signal.SIGINT}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(number) for number in STOP_EXCEPTIONS]


@pytest.mark.parametrize(("number", "kind"), STOP_EXCEPTIONS.items())
def test_the_first_signal_is_deferred_until_it_is_raised(number, kind):
    before, reached = handlers(), []
    with pytest.raises(kind):
        with DeferredSignals() as signals:
            signals.raise_pending()
            signal.raise_signal(number)
            reached.append("the rest of the tick")
            signals.raise_pending()
            reached.append("another tick")
    assert reached == ["the rest of the tick"]
    assert handlers() == before


def test_a_second_signal_after_a_burst_is_raised_at_once(monkeypatch):
    reached, saved = [], False
    with pytest.raises(KeyboardInterrupt), DeferredSignals() as signals:
        try:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            reached.append("the rest of the burst")
            monkeypatch.setattr("algorithm.training.signals.BURST_SECONDS", 0.0)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it waited")
        finally:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)  # before the caller has deferred all signals
            signals.defer_all()
            saved = True
    assert reached == ["the rest of the burst"]
    assert saved


def test_deferred_signals_are_raised_at_the_end():
    saved = False
    with pytest.raises(KeyboardInterrupt), DeferredSignals() as signals:
        signals.defer_all()
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        saved = True
    assert saved


def test_a_signal_does_not_replace_an_error():
    with pytest.raises(ValueError), DeferredSignals() as signals:
        signals.defer_all()
        signal.raise_signal(signal.SIGINT)
        raise ValueError


@pytest.mark.parametrize(("number", "kind"), STOP_EXCEPTIONS.items())
def test_each_signal_raises_its_exception_once_in_a_burst(number, kind):
    before = handlers()
    with pytest.raises(kind), raise_on_stop_signals():
        signal.raise_signal(number)
    assert handlers() == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a signal of POSIX")
def test_an_ignored_sighup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raise_on_stop_signals(), DeferredSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signals.raise_pending()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    with pytest.raises(TerminalClosed), raise_on_stop_signals():
        signal.raise_signal(signal.SIGHUP)


def test_other_threads_are_unaffected():
    failed = []

    def work():
        try:
            with raise_on_stop_signals(), DeferredSignals() as signals:
                signals.raise_pending()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
