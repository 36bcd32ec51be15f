"""Every error is one line that says something."""

import pytest

from algorithm.errors import MAX_LENGTH, format_traceback, summarize_error


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_error_is_its_kind_and_text():
    assert summarize_error(ValueError("too\n  small")) == "ValueError: too small"
    assert format_traceback(raised(ValueError("small"))).endswith("ValueError: small\n")


def test_an_error_without_text_is_where_it_was_raised():
    assert summarize_error(AssertionError()) == "AssertionError"
    error = raised(AssertionError())
    where = f"AssertionError in {__file__}, line {raised.__code__.co_firstlineno + 2}"
    assert summarize_error(error) == where
    assert format_traceback(error).splitlines()[-1] == where


def test_a_long_text_is_cut():
    assert summarize_error(ValueError("x" * 5000)) == f"ValueError: {'x' * MAX_LENGTH} ..."
