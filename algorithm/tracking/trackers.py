"""Trackers, which show the metrics of a run: their contract; TensorBoard, Weights & Biases, MLflow and Trackio."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from algorithm.errors import UserError, summarize_error
from algorithm.records_io import RecordError, read_json, write_json

if TYPE_CHECKING:  # runs are listed without numpy
    import numpy as np

LOG = logging.getLogger(__name__)
Values = Mapping[str, float]  # metrics by name
RECORD_FILE = "tracker.json"  # in the run folder: `tracker`, its name, and `id`, its id for the run
TENSORBOARD_FOLDER = "tensorboard"  # in the run folder
# The same values by the names that users of a simulator know, by role: a function of the metrics of a row.
Rename = Callable[[Values], Mapping[str, Values]]

# Charts of the tab Custom Scalars: {category: {title: regular expression of the metrics that are its lines}}.
LINES = {
    "episodes": {"return": r"^(rollout|eval)/return(/.*)?$", "length": r"^(rollout|eval)/length(/.*)?$"},
    "critic": {
        "losses": r"^train/.*_loss(/.*)?$",
        "explained variance": r"^train/explained_variance(/.*)?$",
        "values": r"^train/(.*_)?value(/.*)?$",
    },
    "policy": {
        "objective": r"^train/policy_objective(/.*)?$",
        "entropy": r"^train/entropy(_\w+)?(/.*)?$",
        "KL divergence": r"^train/kl_\w+(/.*)?$",
        "ratios": r"^train/(importance_ratio|clip_fraction|trust_region_fraction)(/.*)?$",
    },
    "steps of the optimizers": {
        "learning rates": r"^train/.*_learning_rate(/.*)?$",
        "gradient norms": r"^train/.*_gradient_norm(/.*)?$",
    },
    "replay": {"fill": r"^train/replay_fill(/.*)?$", "age": r"^train/replay_age(/.*)?$"},
    "cluster": {
        "lag": r"^cluster/lag(_max)?$",
        "queue": r"^cluster/queue$",
        "actors and restarts": r"^cluster/(actors|restarts)$",
        "env steps without use": r"^cluster/(lost|dropped)_env_steps$",
        "waiting": r"^cluster/\w+_waiting$",
    },
    "time": {"env steps and updates per second": r"^time/\w+_per_second$", "fractions": r"^time/\w+_fraction$"},
}
EVALUATION = ("eval/return", "eval/return_low", "eval/return_high")  # a line and the limits of its margin

# Variables of the libraries: no usage statistics are sent, and a server that does not answer fails after seconds.
ENVIRONMENT = {
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # it would print how it creates the database
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
}
STEP = "env_steps"  # the x-axis of all metrics of wandb, so that a resumed run may repeat env steps
DATABASE = "mlflow.db"  # of MLflow offline, in the folder of all runs
MAX_PARAMS = 100  # of one request to MLflow
MAX_PARAM_LENGTH = 6000  # characters
MAX_TAG_LENGTH = 5000
INTERRUPTED = (129, 130, 143)  # exit statuses of runs that a signal has ended
TRACKIO_FOLDER = "trackio"  # of Trackio offline, in the folder of all runs


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run, for the trackers that open it."""

    folder: Path
    runs: Path  # the folder with the run folders of all environments
    name: str  # with its environment
    project: str
    group: str | None  # such as the runs of one command with several seeds; None: no group
    settings: Mapping[str, Any]  # those that have an effect, by their paths
    config: str  # all settings as YAML
    env_steps: int  # from which the run continues; 0 for a new run
    suffixes: tuple[str, ...]  # of the names of metrics of each role: an empty text for the only role, else /<role>
    online: bool  # whether the tracker may send the run to a server
    address: str | None  # of the server; None for the tracker's own default

    def read_id(self, tracker: str) -> str | None:
        """Return the id that a tracker has given to this run; None if it has not opened the run, or has lost the id."""
        try:
            record = read_json(self.folder / RECORD_FILE, dict[str, str]) or {}
        except RecordError as error:
            LOG.warning(f"{error}: the tracker {tracker} opens a new run")
            return None
        return record.get("id") if record.get("tracker") == tracker else None

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

    @abstractmethod
    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Add the content of result.json, None if the run ended before its training began, and close the tracker."""


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


class TensorBoard(Tracker):
    """The events of a run: metrics, histograms, the settings as text and as hyperparameters, and a layout of charts.

    When a run is resumed, TensorBoard drops the events after the env steps from which it continues.

    Args:
        run: the run.
        rename: returns metrics by other names, which are written to a separate folder for each role.
    """

    def __init__(self, run: TrackedRun, rename: Rename = lambda values: {}):
        from torch.utils.tensorboard import SummaryWriter  # slow to import
        from torch.utils.tensorboard.summary import hparams

        _silence_writer_threads()
        folder = run.folder / TENSORBOARD_FOLDER
        purge_step = run.env_steps + 1 if folder.exists() else None
        self._rename = rename
        self._make_writer = lambda name: SummaryWriter(folder / name, purge_step=purge_step)
        self._role_writers: dict[str, Any] = {}
        self.writer = cast(Any, self._make_writer(""))  # whose file_writer is None once it is closed
        settings = {path: to_plain(value) for path, value in run.settings.items()}
        results = {f"{name}{suffix}": 0.0 for suffix in run.suffixes for name in ("rollout/return", "eval/return")}
        *start, self._end = hparams(settings, results)  # of `results`, only the names are written
        for summary in start:
            self.writer.file_writer.add_summary(summary)
        self.writer.add_text("settings", indent(run.config, "    "), run.env_steps)  # a block of code in Markdown
        self.writer.add_custom_scalars(make_layout(run.suffixes))

    def log(self, env_steps: int, values: Values) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, env_steps)
        for role, renamed in self._rename(values).items():
            if role not in self._role_writers:
                self._role_writers[role] = self._make_writer(quote(role, safe=" "))
            for name, value in renamed.items():
                self._role_writers[role].add_scalar(name, value, env_steps)

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        for name, array in values.items():
            self.writer.add_histogram(name, array, env_steps)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.writer.file_writer.add_summary(self._end)
        for writer in (self.writer, *self._role_writers.values()):
            writer.close()


@cache
def _silence_writer_threads() -> None:
    """Let threads that write events print no traceback: the next call of their writer raises the exception again."""
    print_exception = threading.excepthook

    def handle(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            print_exception(args)

    threading.excepthook = handle


def make_layout(suffixes: tuple[str, ...]) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of the tab Custom Scalars, given the suffixes of the metrics of each role."""
    layout = {
        category: {title: ["Multiline", [expression]] for title, expression in charts.items()}
        for category, charts in LINES.items()
    }
    for suffix in suffixes:
        title = f"return in evaluation, with its interval {suffix.lstrip('/')}".rstrip()
        layout["episodes"][title] = ["Margin", [f"{name}{suffix}" for name in EVALUATION]]
    return layout


def _set_environment() -> None:
    """Set the variables of the libraries, before one is imported, unless the user has set them."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _make_address_error(server: str, forms: str) -> UserError:
    """Return the error for a run online whose server is not known."""
    return UserError(f"tracker_config.mode online needs the address of {server}: set tracker_config.address to {forms}")


class WandbTracker(Tracker):
    """A run of Weights & Biases.

    Offline, its files are in `wandb/` in the run folder, and `wandb sync` uploads them. Online, wandb needs a login.
    """

    def __init__(self, run: TrackedRun):
        _set_environment()
        import wandb

        self._make_histogram = wandb.Histogram
        run_id = run.read_id("wandb")
        settings = {"console": "off", "silent": True, **({"base_url": run.address} if run.address else {})}
        (run.folder / "wandb").mkdir(exist_ok=True)  # otherwise wandb uses a temporary folder
        self.run = wandb.init(
            project=run.project,
            name=run.name,
            group=run.group,
            id=run_id or uuid.uuid4().hex,
            resume="allow" if run_id else None,
            dir=str(run.folder),
            mode="online" if run.online else "offline",
            settings=wandb.Settings(**settings),
        )
        self.run.config.update(dict(run.settings), allow_val_change=True)
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP)
        run.write_id("wandb", self.run.id)

    def log(self, env_steps: int, values: Values) -> None:
        self.run.log({STEP: env_steps, **values})

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        self.run.log({STEP: env_steps, **{name: self._make_histogram(array) for name, array in values.items()}})

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.run.summary.update({"result": dict(record)})
        self.run.finish(exit_code=record["status"] if record else 1)


class MlflowTracker(Tracker):
    """A run of MLflow, in the experiment with the name of the project.

    Offline, it is in the SQLite database `mlflow.db` in the folder of all runs.
    """

    def __init__(self, run: TrackedRun):
        _set_environment()
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        address = run.address or os.environ.get("MLFLOW_TRACKING_URI")
        if run.online and not address:
            raise _make_address_error("an MLflow server", "http://HOST:PORT")
        self.client = MlflowClient(
            tracking_uri=address if run.online else f"sqlite:///{(run.runs / DATABASE).as_posix()}"
        )
        if run_id := run.read_id("mlflow"):
            self.run_id = run_id
            self.client.update_run(run_id, status="RUNNING")
        else:
            experiment = self.client.get_experiment_by_name(run.project)
            experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(run.project)
            tags = {"group": run.group} if run.group else {}
            self.run_id = self.client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
            params = [
                Param(clean_name(path), str(to_plain(value))[:MAX_PARAM_LENGTH]) for path, value in run.settings.items()
            ]
            for start in range(0, len(params), MAX_PARAMS):
                self.client.log_batch(self.run_id, params=params[start : start + MAX_PARAMS])
            run.write_id("mlflow", self.run_id)

    def log(self, env_steps: int, values: Values) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(clean_name(name), float(value), now, env_steps) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.log(record["env_steps"], flatten_numbers(record, "result/"))
            self.client.set_tag(self.run_id, "result", json.dumps(record)[:MAX_TAG_LENGTH])
        status = record["status"] if record else 1
        names = {0: "FINISHED", **dict.fromkeys(INTERRUPTED, "KILLED")}
        self.client.set_terminated(self.run_id, names.get(status, "FAILED"))


def clean_name(name: str) -> str:
    """Return the name of a metric or setting with `_` in place of characters that MLflow does not support."""
    return re.sub(r"[^\w\-. /:]", "_", name)


class TrackioTracker(Tracker):
    """A run of Trackio.

    Offline, it is in a database in `trackio/` in the folder of all runs.
    """

    def __init__(self, run: TrackedRun):
        _set_environment()
        if not run.online:
            os.environ["TRACKIO_DIR"] = str(run.runs / TRACKIO_FOLDER)
        elif not run.address:
            raise _make_address_error("a Trackio server", "http://HOST:PORT, or to USER/SPACE of Hugging Face")
        import trackio

        self.trackio = trackio
        server = {}
        if run.address:
            server = {"server_url" if "://" in run.address else "space_id": run.address}
        with redirect_stdout(io.StringIO()):  # it prints about its dashboard
            self.run = trackio.init(
                project=run.project,
                name=run.name,
                group=run.group,
                config=dict(run.settings),
                resume="allow" if run.read_id("trackio") else "never",  # by its name, of which it is the newest run
                embed=False,
                **server,
            )
        run.write_id("trackio", str(self.run.id))

    def log(self, env_steps: int, values: Values) -> None:
        self.run.log(dict(values), step=env_steps)

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        self.run.log({name: self.trackio.Histogram(array) for name, array in values.items()}, step=env_steps)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.log(record["env_steps"], flatten_numbers(record, "result/"))
        with redirect_stdout(io.StringIO()):
            self.trackio.finish()
