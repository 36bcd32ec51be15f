"""What a trainer configuration says of one behavior and of the run, by the place where it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from algorithm.errors import UserError
from algorithm.mlagents.rules import MapsTo, Rejected, Rule, Rules, Unsupported


@dataclass(frozen=True)
class Entry:
    """A value, and the key that gave it as it stands in the file; without one it is ML-Agents' default."""

    key: str | None
    value: Any


class TrainerConfig:
    """The keys of a behavior and of the run, by their paths below either, each with its row: None is an unknown key.

    Raises UserError for a value that is no mapping where keys are expected, and the reverse.
    """

    def __init__(self, file: str, trainer: str, rules: Rules, entries: Mapping[str, Entry]):
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
        """What `path` says, or else `default`. Raises UserError for a value of another kind."""
        rule = self.rules.get(path)
        if path not in self.entries or rule is None or isinstance(rule, Rejected):
            return default
        try:
            return rule.converter(self.entries[path].value)
        except (ValueError, OverflowError) as error:
            raise self.make_error(path, error) from error

    def make_error(self, path: str, why: object) -> UserError:
        """A value that cannot be, in one line."""
        entry = self.entries[path]
        return UserError(f"{self.file}: {entry.key or path} is {entry.value!r}; {why}")

    @staticmethod
    def has_section(section: str, paths: Mapping[str, Any]) -> bool:
        """Whether any of the paths stands in `section`."""
        return any(path.startswith(f"{section}.") for path in paths)

    def _find_section_rule(self, path: str, entry: Entry) -> Rule | None:
        """The row of a section that is lost as a whole."""
        section = path
        while section := section.rpartition(".")[0]:
            if isinstance(rule := self.rules.get(section), Unsupported):
                return None if rule.strict else rule
            if rule:
                raise UserError(f"{self.file}: {entry.key}: {section} is one value, not a mapping of keys")
        return None


def iterate_entries(prefix: str, tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Entry]]:
    """Every value of a mapping of mappings, by its path; a mapping without keys is one."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from iterate_entries(prefix, value, f"{path}.")
        else:
            yield path, Entry(f"{prefix}{path}", value)


def merge_entries(below: Mapping[str, Entry], above: Mapping[str, Entry]) -> dict[str, Entry]:
    """`above` on top of `below`; a null takes away all that stands below it."""
    removed = [path for path, entry in above.items() if entry.value is None]
    kept = {
        path: entry
        for path, entry in below.items()
        if not any(path == other or path.startswith(f"{other}.") for other in removed)
    }
    return {path: entry for path, entry in {**kept, **above}.items() if entry.value is not None}


def suggest_key(path: str, known: Mapping[str, Any]) -> str:
    """A question with the key that was meant, where one is like `path`: of the same name elsewhere, or spelled so."""
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    found = elsewhere or [siblings[similar] for similar in get_close_matches(key, list(siblings), 1)]
    return f"; did you mean {found[0]}?" if found else ""
