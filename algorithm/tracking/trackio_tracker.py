"""Trackio: in a folder of all runs, or on a server or a Space of Hugging Face."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from algorithm.errors import UserError
from algorithm.tracking.tracker import TrackedRun, Tracker, Values, flatten_numbers

NAME = "trackio"
FOLDER = "trackio"  # offline, in the folder of all runs
# No usage statistics are sent.
ENVIRONMENT = {"HF_HUB_DISABLE_TELEMETRY": "1", "GRADIO_ANALYTICS_ENABLED": "False"}


class TrackioTracker(Tracker):
    """A run of Trackio.

    Offline, it is in a database in `trackio/` in the folder of all runs.
    """

    def __init__(self, run: TrackedRun):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if not run.online:
            os.environ["TRACKIO_DIR"] = str(run.runs / FOLDER)
        elif not run.address:
            raise UserError(
                "tracker_config.mode online needs the address of a Trackio server: set tracker_config.address to "
                "http://HOST:PORT, or to USER/SPACE of Hugging Face"
            )
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
                resume="allow" if run.read_id(NAME) else "never",  # by its name, of which it is the newest run
                embed=False,
                **server,
            )
        run.write_id(NAME, str(self.run.id))

    def log(self, env_steps: int, values: Values) -> None:
        self.run.log(dict(values), step=env_steps)

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        self.run.log({name: self.trackio.Histogram(array) for name, array in values.items()}, step=env_steps)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.log(record["env_steps"], flatten_numbers(record, "result/"))
        with redirect_stdout(io.StringIO()):
            self.trackio.finish()
