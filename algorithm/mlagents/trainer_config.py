"""What a trainer configuration says of one behavior and of the run, by the place where it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from algorithm.errors import UserError
from algorithm.mlagents.rules import Becomes, Lost, Refused, Row, Rows


@dataclass(frozen=True)
class Entry:
    """A value, and the key that gave it as it stands in the file; without one it is ML-Agents' default."""

    key: str | None
    value: Any


class Given:
    """The keys of a behavior and of the run, by their paths below either, each with its row: None is an unknown key.

    Raises UserError for a value that is no mapping where keys are expected, and the reverse.
    """

    def __init__(self, file: str, trainer: str, rows: Rows, entries: Mapping[str, Entry]):
        self.file, self.trainer, self.rows = file, trainer, rows
        self.entries = {
            path: Entry(None, row.default)
            for path, row in rows.items()
            if isinstance(row, Becomes) and row.default is not None
        }
        self.row: dict[str, Row | None] = {path: rows[path] for path in self.entries}
        for path, entry in entries.items():
            if path not in rows and self.has(path, rows):
                if entry.value != {}:
                    raise UserError(f"{file}: {entry.key} is {entry.value!r}; it must be a mapping of keys")
                continue
            self.entries[path] = entry
            self.row[path] = rows.get(path) or self._above(path, entry)
        for path, row in rows.items():
            if isinstance(row, Lost) and (path in self.entries or self.has(path, self.entries)):
                for key in row.required:
                    if f"{path}.{key}" not in self.entries:
                        raise UserError(f"{file}: {path} has no {key}, which ML-Agents requires")

    def value(self, path: str, otherwise: Any = None) -> Any:
        """What `path` says, or else `otherwise`. Raises UserError for a value of another kind."""
        row = self.rows.get(path)
        if path not in self.entries or row is None or isinstance(row, Refused):
            return otherwise
        try:
            return row.kind(self.entries[path].value)
        except (ValueError, OverflowError) as error:
            raise self.wrong(path, error) from error

    def wrong(self, path: str, why: object) -> UserError:
        """A value that cannot be, in one line."""
        entry = self.entries[path]
        return UserError(f"{self.file}: {entry.key or path} is {entry.value!r}; {why}")

    @staticmethod
    def has(section: str, paths: Mapping[str, Any]) -> bool:
        """Whether any of the paths stands in `section`."""
        return any(path.startswith(f"{section}.") for path in paths)

    def _above(self, path: str, entry: Entry) -> Row | None:
        """The row of a section that is lost as a whole."""
        above = path
        while above := above.rpartition(".")[0]:
            if isinstance(row := self.rows.get(above), Lost):
                return None if row.strict else row
            if row:
                raise UserError(f"{self.file}: {entry.key}: {above} is one value, not a mapping of keys")
        return None


def entries(prefix: str, tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Entry]]:
    """Every value of a mapping of mappings, by its path; a mapping without keys is one."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from entries(prefix, value, f"{path}.")
        else:
            yield path, Entry(f"{prefix}{path}", value)


def merged(below: Mapping[str, Entry], above: Mapping[str, Entry]) -> dict[str, Entry]:
    """`above` on top of `below`; a null takes away all that stands below it."""
    gone = [path for path, entry in above.items() if entry.value is None]
    kept = {
        path: entry
        for path, entry in below.items()
        if not any(path == other or path.startswith(f"{other}.") for other in gone)
    }
    return {path: entry for path, entry in {**kept, **above}.items() if entry.value is not None}


def nearest(path: str, known: Mapping[str, Any]) -> str:
    """A question with the key that was meant, where one is like `path`: of the same name elsewhere, or spelled so."""
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    beside = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    found = elsewhere or [beside[like] for like in get_close_matches(key, list(beside), 1)]
    return f"; did you mean {found[0]}?" if found else ""
