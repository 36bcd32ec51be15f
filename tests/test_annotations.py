"""Tests of conditions: a failed condition names the setting and the value that make another setting ineffective."""

from types import SimpleNamespace

import pytest

from algorithm.annotations import OnlyIf, Unless


@pytest.mark.parametrize(
    ("condition", "settings", "failure"),
    [
        (OnlyIf(kind="a"), {"kind": "a"}, None),
        (OnlyIf(kind="A"), {"kind": "a"}, None),
        (OnlyIf(kind=("a", "b")), {"kind": "b"}, None),
        (OnlyIf(kind=("a", "b")), {"kind": "c"}, "is for kind a or b, not for c, and so has no effect"),
        (OnlyIf(kind="a", on=True), {"kind": "a", "on": False}, "is for on true, not for false, and so has no effect"),
        (Unless(share=0), {"share": 0.5}, None),
        (Unless(share=0), {"share": 0.0}, "has no effect, since share is 0"),
        (Unless(share=None), {"share": None}, "has no effect, since share is null"),
        (Unless(kind="a", share=0), {"kind": "A", "share": 1}, "has no effect, since kind is A"),
    ],
)
def test_a_condition_names_the_setting_that_fails_it(condition, settings, failure):
    assert condition.failure(SimpleNamespace(**settings)) == failure
