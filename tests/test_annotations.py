"""Annotations describe bounds and conditions of settings, and check them."""

from types import SimpleNamespace
from typing import Annotated

import pytest

from algorithm.annotations import CONTINUOUS, AnyOf, FixedOnResume, OnlyIf, Range, Unless, get_annotations


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
        (AnyOf(OnlyIf(kind="a"), OnlyIf(on=True)), {"kind": "b", "on": True}, None),
        (AnyOf(OnlyIf(kind="a"), OnlyIf(on=True)), {"kind": "a", "on": False}, None),
        (
            AnyOf(OnlyIf(kind="a"), OnlyIf(on=True)),
            {"kind": "b", "on": False},
            "is for kind a, not for b, and so has no effect",
        ),
    ],
)
def test_a_condition_names_the_setting_that_fails(condition, settings, failure):
    assert condition.explain_failure(SimpleNamespace(**settings)) == failure


@pytest.mark.parametrize(
    ("limits", "allowed", "refused", "text"),
    [
        ({"above": 0}, [1e-9, 3, None], [0, -1], "above 0"),
        ({"at_least": 1}, [1, 2], [0], "at least 1"),
        ({"at_least": 0, "at_most": 1}, [0, 0.5, 1], [-0.1, 1.1], "from 0 to 1"),
        ({"at_least": 0, "below": 1}, [0, 0.9], [1], "at least 0 and below 1"),
        ({"above": 0, "at_most": 10**6}, [10**6], [0, 10**6 + 1], "above 0 and at most 1,000,000"),
        ({"at_least": -0.69314, "note": "the limit"}, [-0.69], [-0.7], "at least -0.6931, the limit"),
        ({"above": 0}, [], [float("nan")], "above 0"),
    ],
)
def test_a_range_allows_null_and_the_numbers_within_its_limits(limits, allowed, refused, text):
    limit = Range(**limits)
    assert str(limit) == text
    assert [limit.check(value) for value in allowed] == allowed
    for value in refused:
        with pytest.raises(ValueError, match=f"^it must be {text}$"):
            limit.check(value)


def test_conditions_have_a_text():
    assert str(OnlyIf(kind=("a", "b"), on=True)) == "only with kind a or b and on true"
    assert str(Unless(share=0, kind="a")) == "not with share 0 or kind a"
    assert str(AnyOf(OnlyIf(kind="a"), Unless(share=0))) == "only with kind a, or not with share 0"
    assert str(CONTINUOUS) == "only for continuous actions"


def test_the_annotations_of_a_class_are_found_by_field():
    class Fields:
        plain: int
        marked: Annotated[int, Range(above=0), FixedOnResume("it is fixed")]

    assert get_annotations(Fields) == {"plain": (), "marked": (Range(above=0), FixedOnResume("it is fixed"))}
