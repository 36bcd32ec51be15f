"""Tests that every error is summarized in one informative line."""

import pytest

from algorithm.errors import MAX_LENGTH, format_traceback, summarize_error


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_a_summary_contains_type_and_text():
    assert summarize_error(ValueError("too\n  small")) == "ValueError: too small"
    assert format_traceback(raised(ValueError("small"))).endswith("ValueError: small\n")


def test_an_error_without_text_is_summarized_by_its_source_line():
    assert summarize_error(AssertionError()) == "AssertionError"
    error = raised(AssertionError())
    where = f"AssertionError in {__file__}, line {raised.__code__.co_firstlineno + 2}"
    assert summarize_error(error) == where
    assert format_traceback(error).splitlines()[-1] == where


def test_a_long_text_is_shortened():
    assert summarize_error(ValueError("x" * 5000)) == f"ValueError: {'x' * MAX_LENGTH} ..."
