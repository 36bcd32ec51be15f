"""The digests of benchmarks/fingerprint.py depend on values, not on names."""

import numpy as np
import pytest

from benchmarks.digests import combine, digest_arrays, find_differences


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"weight": rng.standard_normal((3, 4)), "head": np.arange(5), "first": np.array([True, False])}


def row(digests, updates=300):
    return {"updates": updates, "digests": {"weights": digests}}


def test_names_order_and_shapes_change_no_digest(arrays):
    renamed = {f"renamed/{name}": arrays[name].reshape(-1) for name in reversed(arrays)}
    assert digest_arrays(renamed.values()) == digest_arrays(arrays.values())
    assert combine(reversed(digest_arrays(arrays.values()))) == combine(digest_arrays(arrays.values()))


def test_unused_memory_changes_no_digest(arrays):
    unused = {**arrays, "unused": np.zeros((2, 3)), "empty": np.zeros(0)}
    assert digest_arrays(unused.values()) == digest_arrays(arrays.values())


@pytest.mark.parametrize("name", ["weight", "head", "first"])
def test_the_smallest_change_of_a_value_changes_one_digest(arrays, name):
    before = digest_arrays(arrays.values())
    value = arrays[name].reshape(-1)
    value[-1] = np.nextafter(value[-1], np.inf) if value.dtype == float else not value[-1]
    after = digest_arrays(arrays.values())
    assert len(set(before) - set(after)) == len(set(after) - set(before)) == 1
    assert combine(before) != combine(after)


def test_exchanged_values_change_the_digest():
    assert digest_arrays([np.array([1.0, 2.0])]) != digest_arrays([np.array([2.0, 1.0])])


def test_differences_name_case_kind_and_count():
    stored = {"same": row(["a"]), "other": row(["a", "a", "b"]), "missing": row([])}
    measured = {"same": row(["a"]), "other": row(["a", "b", "c", "d"], updates=301), "new": row([])}
    assert find_differences(stored, measured) == [
        "other: updates 301, stored 300; weights: 1 of 3 stored digests missing, 2 new",
        "missing: only in the stored table",
        "new: only in the measured table",
    ]


def test_an_extensible_kind_may_have_new_digests_and_misses_none():
    stored, measured = {"case": row(["a", "b"])}, {"case": row(["a", "b", "c"])}
    assert find_differences(stored, measured, extensible=("weights",)) == []
    assert find_differences(stored, {"case": row(["a", "c"])}, extensible=("weights",)) == [
        "case: weights: 1 of 2 stored digests missing, 1 new"
    ]
