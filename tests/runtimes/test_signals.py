import signal
import threading

import pytest

from algorithm.runtimes.signals import SAVED, STOPS, Deferred, Terminated, terminable


def handlers():
    return [signal.getsignal(number) for number in STOPS]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_the_first_signal_waits_until_it_is_asked_for(number, kind):
    before, reached = handlers(), []
    with pytest.raises(kind, match=SAVED):
        with Deferred() as signals:
            signals.raise_asked()
            signal.raise_signal(number)
            reached.append("the rest of the tick")
            signals.raise_asked()
            reached.append("another tick")
    assert reached == ["the rest of the tick"]
    assert handlers() == before


def test_a_second_signal_does_not_wait():
    with pytest.raises(KeyboardInterrupt), Deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")


def test_held_signals_come_at_the_end():
    saved = False
    with pytest.raises(KeyboardInterrupt), Deferred() as signals:
        signals.hold()
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        saved = True
    assert saved


def test_what_goes_wrong_is_not_hidden_by_a_signal():
    with pytest.raises(ValueError), Deferred() as signals:
        signals.hold()
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_sigterm_is_an_exception_of_its_own_for_a_while():
    before = handlers()
    with pytest.raises(Terminated), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


def test_other_threads_are_left_alone():
    failed = []

    def work():
        try:
            with terminable(), Deferred() as signals:
                signals.raise_asked()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
