"""Fixtures of the tests of several modules."""

from tests.processes.inline_host import hosts  # noqa: F401
