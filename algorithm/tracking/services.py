"""The services Weights & Biases (wandb), MLflow and Trackio: offline in folders, or on a server."""

from __future__ import annotations

import io
import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from algorithm.errors import UserError
from algorithm.tracking.tracker import TrackedRun, Tracker, Values, flatten_numbers, to_plain

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
FOLDER = "trackio"  # of Trackio offline, in the folder of all runs


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
            self.run_id = self._create_run(run)
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

    def _create_run(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        experiment = self.client.get_experiment_by_name(run.project)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(run.project)
        tags = {"group": run.group} if run.group else {}
        run_id: str = self.client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        params = [
            Param(clean_name(path), str(to_plain(value))[:MAX_PARAM_LENGTH]) for path, value in run.settings.items()
        ]
        for start in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(run_id, params=params[start : start + MAX_PARAMS])
        return run_id


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
            os.environ["TRACKIO_DIR"] = str(run.runs / FOLDER)
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
