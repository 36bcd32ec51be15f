"""The keys of a trainer configuration, and the rules for their conversion to settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from algorithm.errors import UserError

USE_DEFAULT = object()  # returned by a conversion if Samara's default applies
Converter = Callable[[Any], Any]  # returns a value with its type; raises ValueError that states what it must be
Convert = Callable[[Any, "TrainerConfig"], Any]


class UnsupportedValue(Exception):
    """An error for a value without a counterpart.

    Args:
        reason: The message.
        used_value: The value of the setting; by default Samara's default.
    """

    def __init__(self, reason: str, used_value: Any = USE_DEFAULT):
        super().__init__(reason)
        self.used_value = used_value


@dataclass(frozen=True)
class MapsTo:
    """A rule for a key whose value becomes the value of a setting.

    Attributes:
        setting: Path of the setting; `agent.` means the section of the algorithm.
        converter: Type of the value.
        convert: Returns the value of the setting, or USE_DEFAULT. It may raise UnsupportedValue, and ValueError for a
            value that ML-Agents would reject.
        default: ML-Agents' default, which is written if the key is missing.
        other_settings: Paths of further settings with the same value.
        mlagents_default: ML-Agents' default, which is not written if the key is missing; a note names both defaults.
    """

    setting: str
    converter: Converter
    convert: Convert = lambda value, config: value
    default: Any = None
    other_settings: tuple[str, ...] = ()
    mlagents_default: Any = None


@dataclass(frozen=True)
class Consumed:
    """A rule for a key that determines the algorithm, or a line of nn.py; `check` may raise UnsupportedValue."""

    converter: Converter
    check: Convert = lambda value, config: None


@dataclass(frozen=True)
class Unsupported:
    """A rule for a key without a counterpart.

    Attributes:
        reason: Why the key has no counterpart.
        supported_values: Values for which nothing is missing.
        converter: Type of the value in ML-Agents.
        strict: Whether ML-Agents rejects unknown keys of this section.
        required: Keys that ML-Agents requires in this section.
    """

    reason: str
    supported_values: tuple[Any, ...] = ()
    converter: Converter = lambda value: value
    strict: bool = False
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """A rule for a key that ML-Agents rejects, for this reason."""

    reason: str


Rule = MapsTo | Consumed | Unsupported | Rejected
Rules = Mapping[str, Rule]


def to_number(value: Any) -> float:
    """Return a number; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it must be a number")
    return value


def to_integer(value: Any) -> int:
    """Return an integer, which may be written as 5.0e6; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ValueError("it must be an integer")
    return int(value)


def make_positive(converter: Converter) -> Converter:
    """Return a converter that also requires a value above 0."""

    def check(value: Any) -> Any:
        if converter(value) <= 0:
            raise ValueError("it must be above 0")
        return converter(value)

    return check


def to_bool(value: Any) -> bool:
    """Return a Boolean; raise ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def to_text(value: Any) -> str:
    """Return text, to which a number is converted; raise ValueError for anything else."""
    if isinstance(value, (bool, dict, list)):
        raise ValueError("it must be text")
    return str(value)


def to_text_list(value: Any) -> list[str]:
    """Return a list of texts; raise ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return [to_text(item) for item in value]


def make_choice(*words: str) -> Converter:
    """Return a converter that accepts one of these words, in lower case as ML-Agents requires."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"use one of: {', '.join(words)}")
        return value

    return check


def make_unsupported_section(
    path: str, reason: str, keys: Mapping[str, Converter], strict: bool = False, required: tuple[str, ...] = ()
) -> Rules:
    """Return the rules of a section without a counterpart; `keys` holds the converter of each key."""
    key_rules = {f"{path}.{key}": Unsupported(reason, converter=converter) for key, converter in keys.items()}
    return {path: Unsupported(reason, strict=strict, required=required), **key_rules}


@dataclass(frozen=True)
class Entry:
    """A value, and its full key in the file; None for ML-Agents' default."""

    key: str | None
    value: Any


class TrainerConfig:
    """The keys of one behavior and of the run, each with the rule that applies to it; None for an unknown key."""

    def __init__(self, file: str, trainer: str, rules: Rules, entries: Mapping[str, Entry]):
        """Match the entries with the rules.

        Args:
            file: Name of the file, for messages.
            trainer: ML-Agents' trainer type.
            rules: Rules by path: the key without `behaviors.<name>`.
            entries: Values by path.

        Raises:
            UserError: If there is a value instead of a mapping or a mapping instead of a value, or a required key is
                missing.
        """
        self.file, self.trainer, self.rules = file, trainer, rules
        self.entries = {
            path: Entry(None, rule.default)
            for path, rule in rules.items()
            if isinstance(rule, MapsTo) and rule.default is not None
        }
        self.matched_rules: dict[str, Rule | None] = {path: rules[path] for path in self.entries}
        for path, entry in entries.items():
            if path not in rules and self.has_section(path, rules):
                if entry.value != {}:
                    raise UserError(f"{file}: {entry.key} is {entry.value!r}; it must be a mapping of keys")
                continue
            self.entries[path] = entry
            self.matched_rules[path] = rules.get(path) or self._find_section_rule(path, entry)
        for path, rule in rules.items():
            if isinstance(rule, Unsupported) and (path in self.entries or self.has_section(path, self.entries)):
                for key in rule.required:
                    if f"{path}.{key}" not in self.entries:
                        raise UserError(f"{file}: {path} has no {key}, which ML-Agents requires")

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value of a path, or else `default`. Raise UserError for a value of another type."""
        rule = self.rules.get(path)
        if path not in self.entries or rule is None or isinstance(rule, Rejected):
            return default
        try:
            return rule.converter(self.entries[path].value)
        except (ValueError, OverflowError) as error:
            raise self.make_error(path, error) from error

    def make_error(self, path: str, why: object) -> UserError:
        """Return an error for the value of a path, in one line."""
        entry = self.entries[path]
        return UserError(f"{self.file}: {entry.key or path} is {entry.value!r}; {why}")

    @staticmethod
    def has_section(section: str, paths: Mapping[str, Any]) -> bool:
        """Return whether any of the paths is in `section`."""
        return any(path.startswith(f"{section}.") for path in paths)

    def _find_section_rule(self, path: str, entry: Entry) -> Rule | None:
        """Return the rule of the section that contains a path, if the section has no counterpart."""
        section = path
        while section := section.rpartition(".")[0]:
            if isinstance(rule := self.rules.get(section), Unsupported):
                return None if rule.strict else rule
            if rule:
                raise UserError(f"{self.file}: {entry.key}: {section} is one value, not a mapping of keys")
        return None


def iterate_entries(prefix: str, tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield the path and entry of every value in nested mappings; an empty mapping counts as a value.

    `prefix` is put before the path to form the full key.
    """
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from iterate_entries(prefix, value, f"{path}.")
        else:
            yield path, Entry(f"{prefix}{path}", value)


def merge_entries(below: Mapping[str, Entry], above: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of both, where `above` takes precedence; a null there removes the key and its section."""
    removed = [path for path, entry in above.items() if entry.value is None]
    kept = {
        path: entry
        for path, entry in below.items()
        if not any(path == other or path.startswith(f"{other}.") for other in removed)
    }
    return {path: entry for path, entry in {**kept, **above}.items() if entry.value is not None}


def suggest_key(path: str, known: Mapping[str, Any]) -> str:
    """Return a question with a key of the same name or a similar spelling, to follow a message; empty without one."""
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    found = elsewhere or [siblings[similar] for similar in get_close_matches(key, list(siblings), 1)]
    return f"; did you mean {found[0]}?" if found else ""
