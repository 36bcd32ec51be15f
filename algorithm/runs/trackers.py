"""The trackers of a run: TensorBoard, and the tracker that its settings name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from algorithm.config.loader import Settings, find_failure
from algorithm.config.registry import find_class
from algorithm.config.yaml_layers import format_yaml, iterate_settings
from algorithm.errors import UserError, redact_logins, summarize_error
from algorithm.parts import run_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.program import get_install_command, metric_suffix
from algorithm.specs import Role
from algorithm.tracking.trackers import TensorBoard, TrackedRun, Tracker, TrackerList, report_failure

NO_SETTINGS_OF_A_RUN = ("tune", "population_config", "tracker_config")  # sections that do not change a run


@contextmanager
def open_trackers(
    settings: Settings, folder: RunFolder, env_steps: int, roles: Mapping[str, Role]
) -> Iterator[TrackerList]:
    """Yield the trackers of a run; they are finished at the latest when the block ends.

    Args:
        settings: the settings of the run.
        folder: its folder.
        env_steps: the env steps from which it continues.
        roles: the roles that are known.

    Raises:
        UserError: the tracker of a new run cannot be opened. If that of a resumed run cannot, one line is logged.
    """
    run = _make_tracked_run(settings, folder, env_steps, roles)
    adapter = find_class("env_type", settings.base.env_type)
    opened = TrackerList({"tensorboard": TensorBoard(run, adapter.rename_metrics)})
    try:
        if settings.base.tracker != "none" and (tracker := _open(settings.base.tracker, run)):
            opened.trackers[settings.base.tracker] = tracker
        yield opened
    finally:
        opened.finish(None)


def _open(name: str, run: TrackedRun) -> Tracker | None:
    tracker_class = find_class("tracker", name)
    try:
        tracker: Tracker = tracker_class(run)
        return tracker
    except ImportError as error:
        needs = f"base_config.tracker {name} needs its packages ({error})"
        raise UserError(f"{needs}: {get_install_command(name)}") from error
    except UserError:
        raise
    except Exception as error:  # of a library, its files or its server
        if run.read_id(name) is None:
            raise UserError(f"the tracker {name} cannot be opened: {summarize_error(error)}") from error
        report_failure(name, error)
        return None


def _make_tracked_run(settings: Settings, folder: RunFolder, env_steps: int, roles: Mapping[str, Role]) -> TrackedRun:
    runs, tracker = run_folder.RUNS.absolute(), settings.tracker
    is_below = folder.path.is_relative_to(runs)
    specs = [role.action_spec for role in roles.values()]
    teams = [team for name, role in roles.items() for team in role.count_lanes_by_team(name)]  # or roles without teams
    return TrackedRun(
        folder=folder.path,
        runs=runs,
        name=folder.path.relative_to(runs).as_posix() if is_below else folder.path.name,
        project=tracker.project,
        group=tracker.group,
        settings={
            path: value
            for path, value in iterate_settings(settings.tree)
            if path.partition(".")[0] not in NO_SETTINGS_OF_A_RUN and find_failure(settings, path, specs) is None
        },
        config=redact_logins(format_yaml(settings.tree)),
        env_steps=env_steps,
        suffixes=tuple(map(metric_suffix, teams)),
        online=tracker.mode == "online",
        address=tracker.address,
    )
