import signal
import threading

import pytest

from algorithm.runtimes.signals import STOP_EXCEPTIONS, DeferredSignals, TerminalClosed, raise_on_stop_signals


@pytest.fixture(autouse=True)
def _not_ignored():
    """Signals are as in a process that was not started by nohup, whatever started the tests."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_EXCEPTIONS if number != signal.SIGINT}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(number) for number in STOP_EXCEPTIONS]


@pytest.mark.parametrize(("number", "kind"), STOP_EXCEPTIONS.items())
def test_the_first_signal_waits_until_it_is_asked_for(number, kind):
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


def test_a_second_signal_does_not_wait():
    with pytest.raises(KeyboardInterrupt), DeferredSignals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")


def test_held_signals_come_at_the_end():
    saved = False
    with pytest.raises(KeyboardInterrupt), DeferredSignals() as signals:
        signals.defer_all()
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        saved = True
    assert saved


def test_what_goes_wrong_is_not_hidden_by_a_signal():
    with pytest.raises(ValueError), DeferredSignals() as signals:
        signals.defer_all()
        signal.raise_signal(signal.SIGINT)
        raise ValueError


@pytest.mark.parametrize(("number", "kind"), STOP_EXCEPTIONS.items())
def test_each_signal_is_an_exception_of_its_own_for_a_while(number, kind):
    before = handlers()
    with pytest.raises(kind), raise_on_stop_signals():
        signal.raise_signal(number)
    assert handlers() == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a signal of POSIX")
def test_a_process_that_ignores_a_closed_terminal_as_under_nohup_still_does():
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


def test_other_threads_are_left_alone():
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
