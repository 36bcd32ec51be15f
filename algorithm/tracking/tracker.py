"""The contract of trackers, which show the metrics of a run; the run that they open; and the list of those of a run."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithm.errors import summarize_error
from algorithm.records_io import OpenRecord, RecordError, read_json, write_json

if TYPE_CHECKING:  # runs are listed without numpy
    import numpy as np

LOG = logging.getLogger(__name__)
Values = Mapping[str, float]  # metrics by name
RECORD_FILE = "tracker.json"  # in the run folder: the tracker of the run, and its id for the run


class TrackerRecord(OpenRecord):
    """The content of tracker.json: the name of a tracker, and its id for the run."""

    tracker: str
    id: str


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run, for the trackers that open it.

    Attributes:
        folder: the run folder.
        runs: the folder with the run folders of all environments.
        name: the name of the run, with its environment.
        project: the project that the run belongs to.
        group: the group of runs that it belongs to, such as the runs of one command with several seeds; None: no group.
        settings: the settings that have an effect, by their paths.
        config: all settings as YAML.
        env_steps: the env steps from which the run continues; 0 for a new run.
        suffixes: what the names of metrics of each role end with: an empty text for the only role, otherwise /<role>.
        online: whether the tracker may send the run to a server.
        address: the server; None for the tracker's own default.
    """

    folder: Path
    runs: Path
    name: str
    project: str
    group: str | None
    settings: Mapping[str, Any]
    config: str
    env_steps: int
    suffixes: tuple[str, ...]
    online: bool
    address: str | None

    def read_id(self, tracker: str) -> str | None:
        """Return the id that a tracker has given to this run; None if it has not opened the run, or has lost the id."""
        try:
            record = read_json(self.folder / RECORD_FILE, TrackerRecord)
        except RecordError as error:
            LOG.warning(f"{error}: the tracker {tracker} opens a new run")
            return None
        return record["id"] if record and record["tracker"] == tracker else None

    def write_id(self, tracker: str, run_id: str) -> None:
        """Record the id that a tracker has given to this run, with which a resumed run continues it."""
        write_json(self.folder / RECORD_FILE, {"tracker": tracker, "id": run_id})


class Tracker(ABC):
    """A tracker of one run, from its start or its continuation to its end."""

    @abstractmethod
    def log(self, env_steps: int, values: Values) -> None:
        """Add a row of metrics."""

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        """Add histograms of arrays, by name. The default adds none, for a tracker that does not show histograms."""
        return None

    @abstractmethod
    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Add the result and close the tracker.

        Args:
            record: the content of result.json; None if the run ended before its training began.
        """


class TrackerList(Tracker):
    """The trackers of a run. A tracker that raises an exception is logged in one line and receives nothing further."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self.trackers = dict(trackers)

    def log(self, env_steps: int, values: Values) -> None:
        self._call(lambda tracker: tracker.log(env_steps, values))

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        self._call(lambda tracker: tracker.log_histograms(env_steps, values))

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Finish all trackers; a second call does nothing."""
        self._call(lambda tracker: tracker.finish(record))
        self.trackers.clear()

    def _call(self, function: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                function(tracker)
            except Exception as error:  # of a library, its files or its server
                del self.trackers[name]
                report_failure(name, error)


def report_failure(name: str, error: Exception) -> None:
    """Log that a tracker has failed, while its run continues."""
    LOG.warning(
        f"the tracker {name} has failed ({summarize_error(error)}); the run continues without it, and metrics.csv has "
        "all metrics"
    )


def flatten_numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested mappings by their paths, joined by `/`; booleans count as 0 and 1."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            found |= flatten_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{key}"] = float(value)
    return found


def to_plain(value: Any) -> bool | int | float | str:
    """Return the value of a setting as a scalar: lists and null as text."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
