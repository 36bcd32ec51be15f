"""The table of names."""

import pytest

from algorithm.config.registry import TABLES, find_class
from algorithm.errors import UserError


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_entry_can_be_imported(kind, name):
    assert callable(find_class(kind, name))
    assert find_class(kind, name.lower()) is find_class(kind, name)


def test_an_unknown_name_is_an_error_with_the_known_names():
    with pytest.raises(UserError, match="algorithm 'TRPO' is unknown; use one of: ACER"):
        find_class("algorithm", "TRPO")
