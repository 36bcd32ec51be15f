"""TensorBoard: events in the run folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from textwrap import indent
from typing import Any
from urllib.parse import quote

import numpy as np

from algorithm.tracking.tracker import TrackedRun, Tracker, Values, to_plain

FOLDER = "tensorboard"  # in the run folder
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
        folder = run.folder / FOLDER
        purge_step = run.env_steps + 1 if folder.exists() else None
        self._rename = rename
        self._make_writer = lambda name: SummaryWriter(folder / name, purge_step=purge_step)
        self._role_writers: dict[str, Any] = {}
        self.writer = self._make_writer("")
        settings = {path: to_plain(value) for path, value in run.settings.items()}
        results = {f"{name}{suffix}": 0.0 for suffix in run.suffixes for name in ("rollout/return", "eval/return")}
        *self._start, self._end = hparams(settings, results)  # of `results`, only the names are written
        for summary in self._start:
            self._write_summary(summary)
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
            self._write_summary(self._end)
        for writer in (self.writer, *self._role_writers.values()):
            writer.close()

    def _write_summary(self, summary: Any) -> None:
        file_writer = self.writer.file_writer
        assert file_writer is not None  # as long as it is open
        file_writer.add_summary(summary)


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
