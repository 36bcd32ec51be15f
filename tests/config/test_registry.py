"""The one table of names."""

import pytest

from algorithm.config.registry import TABLES, find_class
from algorithm.errors import UserError


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_row_imports(kind, name):
    assert callable(find_class(kind, name))
    assert find_class(kind, name.lower()) is find_class(kind, name)


def test_an_unknown_name_is_told_with_what_there_is():
    with pytest.raises(UserError, match="algorithm 'TRPO' is unknown; there is ACER"):
        find_class("algorithm", "TRPO")
