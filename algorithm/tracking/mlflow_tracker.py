"""MLflow: in a database of all runs, or on a tracking server."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from algorithm.errors import UserError
from algorithm.tracking.tracker import TrackedRun, Tracker, Values, flatten_numbers, to_plain

NAME = "mlflow"
DATABASE = "mlflow.db"  # offline, in the folder of all runs
MAX_PARAMS = 100  # of one request
MAX_PARAM_LENGTH = 6000  # characters
MAX_TAG_LENGTH = 5000
INTERRUPTED = (129, 130, 143)  # exit statuses of runs that a signal has ended
# No usage statistics are sent. A server that does not answer fails after seconds instead of minutes.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # it would print how it creates the database
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class MlflowTracker(Tracker):
    """A run of MLflow, in the experiment with the name of the project.

    Offline, it is in the SQLite database `mlflow.db` in the folder of all runs.
    """

    def __init__(self, run: TrackedRun):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=_find_uri(run))
        if run_id := run.read_id(NAME):
            self.run_id = run_id
            self.client.update_run(run_id, status="RUNNING")
        else:
            self.run_id = self._create_run(run)
            run.write_id(NAME, self.run_id)

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


def _find_uri(run: TrackedRun) -> str:
    """Return the address of the tracking server or of the database. Raises UserError if no server is set."""
    if not run.online:
        return f"sqlite:///{(run.runs / DATABASE).as_posix()}"
    if uri := run.address or os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    raise UserError(
        "tracker_config.mode online needs the address of an MLflow server: set tracker_config.address to http://HOST:PORT"
    )


def clean_name(name: str) -> str:
    """Return the name of a metric or setting with `_` in place of characters that MLflow does not support."""
    return re.sub(r"[^\w\-. /:]", "_", name)
