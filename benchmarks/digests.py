"""Digests of the values of arrays, and the differences between two tables of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

SIZE = 5  # bytes of a digest, which is written in hexadecimal


def digest_bytes(content: bytes) -> str:
    """Return the digest of some bytes."""
    return hashlib.blake2b(content, digest_size=SIZE).hexdigest()


def digest_arrays(arrays: Iterable[np.ndarray]) -> list[str]:
    """Return the digests of the contents of arrays, sorted.

    Neither the order nor the shapes of the arrays matter. An array that is empty or contains only zeros is left out, so
    that allocated but unused memory does not count.
    """
    return sorted(digest_bytes(np.ascontiguousarray(array).tobytes()) for array in arrays if array.any())


def combine(digests: Iterable[str]) -> str:
    """Return one digest for several, independent of their order."""
    return digest_bytes(" ".join(sorted(digests)).encode())


def find_differences(
    stored: Mapping[str, Any], measured: Mapping[str, Any], extensible: Collection[str] = ()
) -> list[str]:
    """Compare two tables and return one line for each case that differs.

    Args:
        stored: For each case, its counts by name and, under `digests`, the digests of each kind of state as a list.
        measured: The same for the table that is compared with `stored`.
        extensible: Kinds of state that may have further digests in `measured`.
    """
    lines = []
    for case in dict.fromkeys([*stored, *measured]):
        if case not in measured or case not in stored:
            lines.append(f"{case}: only in the {'stored' if case in stored else 'measured'} table")
        elif parts := [
            *_compare_counts(stored[case], measured[case]),
            *_compare_kinds(stored[case], measured[case], extensible),
        ]:
            lines.append(f"{case}: {'; '.join(parts)}")
    return lines


def _compare_counts(stored: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Return a text for each count that differs."""
    names = [name for name in stored if name != "digests"]
    return [f"{name} {measured[name]}, stored {stored[name]}" for name in names if measured[name] != stored[name]]


def _compare_kinds(stored: Mapping[str, Any], measured: Mapping[str, Any], extensible: Collection[str]) -> list[str]:
    """Return a text for each kind of state whose digests differ: how many are missing, and how many are new."""
    parts = []
    for kind, digests in stored["digests"].items():
        before, now = Counter(digests), Counter(measured["digests"][kind])
        missing, new = (before - now).total(), (now - before).total()
        if missing or (new and kind not in extensible):
            parts.append(f"{kind}: {missing} of {before.total()} stored digests missing, {new} new")
    return parts
