"""Records on disk: JSON, JSON lines and tables of numbers. A damaged part is left out, and is one line of text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from typing_extensions import NotRequired, TypedDict, get_type_hints

from algorithm.atomic_io import replace_bytes, set_aside
from algorithm.errors import UserError

DIGEST_BYTES = 32  # bytes of a digest
DIGEST_MARK = b', "blake2b": "'  # before the digest of a sealed object, which is its last item
STRICT: Any = {"strict": True, "allow_inf_nan": False, "extra": "forbid"}  # a configuration of pydantic
T = TypeVar("T")


class OpenRecord(TypedDict):
    """A JSON object whose declared items have these types, and which may have further items."""

    __pydantic_config__ = {**STRICT, "extra": "allow"}  # type: ignore[misc]


class RecordError(UserError):
    """A file that cannot be read, or is damaged. Its message is one line without the consequence."""


def read_json(path: Path, kind: type[T], *, allow_nan: bool = False) -> T | None:
    """Return the record in a JSON file; None if the file does not exist.

    A record that is sealed is compared with its digest; one without a digest is of an earlier version.

    Args:
        path: the file.
        kind: type of the record: a dataclass, an `OpenRecord`, or a container of them.
        allow_nan: whether numbers may be NaN or infinite.

    Raises:
        RecordError: it cannot be read, is not JSON in UTF-8, or does not have this type.
    """
    try:
        return _parse(path.read_bytes().removesuffix(b"\n"), kind, allow_nan)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(_describe_unreadable(path, error)) from error
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({_describe_damage(error)})") from error


def write_json(path: Path, record: Any, *, is_sealed: bool = False) -> None:
    """Replace the record in a JSON file, completely or not at all. Raises ValueError for a number that is not finite.

    Args:
        path: the file; a folder in its place is renamed.
        record: values of JSON.
        is_sealed: whether its last item is the digest of the others; the record is an object then.
    """
    _replace(path, [json.dumps(record, indent=1, allow_nan=False)], is_sealed)


def read_json_lines(path: Path, kind: type[T], *, allow_nan: bool = False) -> tuple[list[T], str | None]:
    """Return the records of a file with one in each line, and a line about the damaged ones, which are left out.

    The second value is None if no line is damaged. A file that does not exist has no records.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], _describe_unreadable(path, error)
    records, damage = [], []
    for number, line in enumerate(lines, 1):
        if line or number < len(lines):
            try:
                records.append(_parse(line, kind, allow_nan))
            except ValueError as error:
                damage.append(f"line {number}: {_describe_damage(error)}")
    return records, f"{path} is damaged in {len(damage)} of its lines ({damage[0]})" if damage else None


def write_json_lines(path: Path, records: Iterable[Any], *, is_sealed: bool = False, allow_nan: bool = False) -> None:
    """Replace the records of a file with one in each line, as `write_json` does."""
    _replace(path, [json.dumps(record, allow_nan=allow_nan) for record in records], is_sealed)


def append_json_line(path: Path, record: Any) -> None:
    """Append a record to a file with one in each line. A folder in its place is renamed."""
    if path.is_dir():
        set_aside(path)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        is_cut = file.read(1) not in (b"", b"\n")  # by the end of another process, which must not damage this record
        file.write(b"\n" * is_cut + json.dumps(record, allow_nan=False).encode() + b"\n")


@dataclass(frozen=True)
class NumberTable:
    """The columns of a CSV table, its rows with each cell as text, and the number of its damaged lines.

    `gaps` are the indices of the rows that follow damaged lines; the number of rows for damaged lines at the end.
    """

    columns: list[str]
    rows: list[dict[str, str]]
    damaged: int
    gaps: tuple[int, ...] = ()


def read_csv(path: Path, key: str) -> NumberTable:
    """Read a table without its damaged lines. Its cells are numbers or empty, those of the column `key` are integers.

    An incomplete last line is left out and not counted as damaged. If the first line, which has the names of the
    columns, is damaged, all lines count as damaged. A file that cannot be read counts as one damaged line; one that
    does not exist is a table without columns.
    """
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").rpartition("\n")[0].splitlines()
    except FileNotFoundError:
        return NumberTable([], [], 0)
    except OSError:
        return NumberTable([], [], 1)
    columns = _split_cells(lines[0]) if lines else []
    if key not in columns or any("\ufffd" in name for name in columns) or len(set(columns)) < len(columns):
        return NumberTable([], [], len(lines))
    rows: list[dict[str, str]] = []
    gaps: dict[int, None] = {}
    for line in lines[1:]:
        if _is_complete(columns, cells := _split_cells(line), key):
            rows.append(dict(zip(columns, cells, strict=True)))
        else:
            gaps[len(rows)] = None
    return NumberTable(columns, rows, len(lines) - 1 - len(rows), tuple(gaps))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a table, completely or not at all."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    replace_bytes(path, text.getvalue().encode())


def append_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a table."""
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, columns).writerows(rows)


def _parse(content: bytes, kind: Any, allow_nan: bool) -> Any:
    """Return the record of a JSON text. Raises ValueError if it is damaged."""
    body, mark, _ = content.rpartition(DIGEST_MARK)
    if mark:
        if content != _seal(body + b"}"):
            raise ValueError("it does not have its digest")
        content = body + b"}"
    if not allow_nan and b"\\u" not in content and content.isascii():  # as this program writes almost every record
        with suppress(ValueError, RecursionError):
            plain = json.loads(content)
            json.dumps(plain, allow_nan=False)
            if _has_type(plain, kind):
                return plain
    from pydantic_core import from_json  # its import takes as long as a list of runs

    value = from_json(content, allow_inf_nan=allow_nan)
    json.dumps(value, allow_nan=allow_nan)  # raises an error for 1e999, too
    return _make_validator(kind)(b"[" + content + b"]")[0]


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a JSON value certainly has a type; pydantic, whose import takes a moment, decides all others."""
    origin, parts = get_origin(kind), get_args(kind)
    if OpenRecord in getattr(kind, "__orig_bases__", ()):
        types = get_type_hints(kind, include_extras=True).items()
        return isinstance(value, dict) and all(
            _has_type(value[name], each) if name in value else get_origin(each) is NotRequired for name, each in types
        )
    if origin in (dict, list):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(_has_type(item, parts[-1]) for item in items)
    is_plain = type(value) is kind or (kind is float and type(value) is int)
    return is_plain or any(_has_type(value, part) for part in parts)


def _replace(path: Path, texts: Iterable[str], is_sealed: bool) -> None:
    if path.is_dir():
        set_aside(path)
    contents = [text.encode() for text in texts]
    replace_bytes(path, b"".join((_seal(content) if is_sealed else content) + b"\n" for content in contents))


def _seal(content: bytes) -> bytes:
    """Return a JSON object with the digest of its text as its last item."""
    from hashlib import blake2b  # few records are sealed

    body = content.removesuffix(b"}").rstrip()
    return body + DIGEST_MARK + blake2b(body, digest_size=DIGEST_BYTES).hexdigest().encode() + b'"}'


@cache
def _make_validator(kind: Any) -> Any:
    """Return a function that converts a JSON list with one record."""
    from pydantic import TypeAdapter  # many commands read no record

    return TypeAdapter(tuple[kind], config=STRICT).validate_json  # a dataclass itself takes no config


def _describe_damage(error: ValueError) -> str:
    """Return the first reason of an error, in one line."""
    if not hasattr(error, "errors"):
        return " ".join(str(error).split())
    first = error.errors(include_url=False)[0]  # of pydantic
    return ": ".join([".".join(map(str, first["loc"][1:])), first["msg"]])


def _describe_unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror or error})"


def _split_cells(line: str) -> list[str]:
    """Return the cells of one line, which is parsed separately, so a stray quotation mark affects no other line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _is_complete(columns: list[str], cells: list[str], key: str) -> bool:
    """Return whether these are the cells of a row: an integer in the column `key`, numbers or nothing in all others."""
    if len(cells) != len(columns):
        return False
    try:
        int(cells[columns.index(key)])
        for cell in cells:
            float(cell or 0)
    except ValueError:
        return False
    return True
