"""Groups of runs that differ in their seeds only, and the labels by which a comparison calls them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorithm.errors import clean_text
from algorithm.tools.reports.compared_runs import ComparedRun, Log, split_name

MAX_VALUE_LENGTH = 40  # characters of the value of a setting in a label


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one environment with the same algorithm, variant and settings.

    Attributes:
        environment: name of the environment folder.
        label: algorithm, variant, and the settings that differ from those of other groups with both.
        runs: the runs.
    """

    environment: str
    label: str
    runs: Sequence[ComparedRun]

    @property
    def name(self) -> str:
        """Return environment and label, for messages."""
        return f"{self.environment} {self.label}"


def group_runs(runs: Iterable[ComparedRun], log: Log) -> list[Group]:
    """Return the groups of runs by environment, algorithm, variant and settings, in the order of their first runs.

    Runs with the same settings and seeds are independent only if something else has changed, such as the version of
    the code. A group that has a seed twice is therefore divided by the names of its runs, which are `NAME-1`, `NAME-2`
    for those of `--repeat`. `log` receives a line for each group that still has a seed twice.
    """
    families = _collect(runs, lambda run: (run.environment, run.algorithm))
    groups = []
    for (environment, algorithm), members in families:
        by_settings = [same for _, same in _collect(members, lambda run: _make_key(run.settings))]
        firsts = [same[0] for same in by_settings]
        paths = _find_differing(firsts, dict.fromkeys(path for run in firsts for path in run.settings))
        for same in by_settings:
            label = " ".join([algorithm, *(_format_setting(path, same[0].settings, paths) for path in paths)])
            groups += [
                Group(environment=environment, label=clean_text(f"{label}{suffix}"), runs=part)
                for suffix, part in _split_repeated_seeds(same)
            ]
    for group in groups:
        if repeated := sorted(_find_repeated_seeds(group.runs)):
            seeds = ", ".join(map(str, repeated))
            log(
                f"{group.name} has several runs with seed {seeds}: they are not independent, its interval is too narrow"
            )
    return groups


def list_differing_settings(groups: Sequence[Group]) -> list[str]:
    """Return the settings that all groups have and whose values differ between them."""
    firsts = [group.runs[0] for group in groups]
    return _find_differing(firsts, [path for path in firsts[0].settings if all(path in run.settings for run in firsts)])


def format_value(value: Any) -> str:
    """Return the value of a setting as a short text."""
    text = clean_text(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."


def _collect(runs: Iterable[ComparedRun], key: Any) -> list[tuple[Any, list[ComparedRun]]]:
    """Return the runs by key, in the order of the first run of each key."""
    found: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.items())


def _make_key(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _find_differing(runs: Sequence[ComparedRun], paths: Iterable[str]) -> list[str]:
    """Return which of the settings have different values in these runs; a run that lacks one has null."""
    return [path for path in paths if len({_make_key(run.settings.get(path)) for run in runs}) > 1]


def _format_setting(path: str, settings: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return name=value of a setting; the name is the last part of its path, if no other path ends with it."""
    name = path.rpartition(".")[2]
    is_unique = sum(other.rpartition(".")[2] == name for other in paths) == 1
    return f"{name if is_unique else path}={format_value(settings.get(path))}"


def _split_repeated_seeds(runs: Sequence[ComparedRun]) -> list[tuple[str, Sequence[ComparedRun]]]:
    """Return the runs, divided by the names without their numbers if a seed is repeated, with what a label adds."""
    by_name = _collect(runs, lambda run: split_name(run.folder.name))
    if not _find_repeated_seeds(runs) or len(by_name) == 1:
        return [("", runs)]
    return [(f" {name}", part) for name, part in by_name]


def _find_repeated_seeds(runs: Sequence[ComparedRun]) -> set[Any]:
    return {seed for seed, count in Counter(run.seed for run in runs).items() if count > 1}
