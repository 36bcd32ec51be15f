"""A fixture for all tests of adapters."""

import pytest

from tests.adapters.configs import OPENED


@pytest.fixture(autouse=True)
def _close_adapters():
    """Close the adapters that the test has opened, also after a failure."""
    yield
    OPENED.close()
