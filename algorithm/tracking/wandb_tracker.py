"""Weights & Biases (wandb): offline in the run folder, or on a server of it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from algorithm.tracking.tracker import TrackedRun, Tracker, Values

NAME = "wandb"
STEP = "env_steps"  # the x-axis of all metrics, so that a resumed run may repeat env steps


class WandbTracker(Tracker):
    """A run of Weights & Biases.

    Offline, its files are in `wandb/` in the run folder, and `wandb sync` uploads them. Online, wandb needs a login.
    """

    def __init__(self, run: TrackedRun):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._make_histogram = wandb.Histogram
        run_id = run.read_id(NAME)
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
        run.write_id(NAME, self.run.id)

    def log(self, env_steps: int, values: Values) -> None:
        self.run.log({STEP: env_steps, **values})

    def log_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        self.run.log({STEP: env_steps, **{name: self._make_histogram(array) for name, array in values.items()}})

    def finish(self, record: Mapping[str, Any] | None) -> None:
        if record:
            self.run.summary.update({"result": dict(record)})
        self.run.finish(exit_code=record["status"] if record else 1)
