"""The Python API: training from a program."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithm.adapters.gym_ids import find_spec
from algorithm.config.loader import Settings
from algorithm.config.trees import Tree, merge, nest
from algorithm.errors import UserError
from algorithm.export.export import RunExporter
from algorithm.reports.report_files import ReportWriter
from algorithm.runs.agent_config import AgentConfigs
from algorithm.runs.build import train as train_in_folder
from algorithm.runs.callbacks import Callback, ResultRecorder, RunResult
from algorithm.runs.env_folder import IDENTIFIER, find_folder, locate_environment
from algorithm.runs.faults import describe_end
from algorithm.runs.origin import describe_origin
from algorithm.runs.results import RESULT_FILE, make_record, read_recorded_variant, write_origin, write_record
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.session import RunRequest, create_run, open_new_run, plan_runs, plan_runs_from, resume_run
from algorithm.runs.suggested_settings import open_environment, suggest_settings
from algorithm.runs.torch_setup import preserve_working_directory

SOURCE = "settings"  # of the settings that a program passes, in messages
MakeEnv = Callable[..., Any]  # returns a gymnasium.Env
Log = Callable[[str], None]


def train(
    env: str | Path | MakeEnv,
    *,
    name: str | None = None,
    variant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    replace: bool = False,
    log: Log | None = None,
) -> RunResult:
    """Train an agent in an environment and return the result of the run.

    Args:
        env: the environment: the name or the path of an environment folder (`gym/cartpole`), an id of Gymnasium
            (`CartPole-v1`), or a function that returns a `gymnasium.Env`. For an id or a function, the settings
            start from the suggestions of `--init`. `--run` and `--resume` open the environment of a function only if
            the function can be imported by its name; `load` needs no environment.
        name: name of the run, `{time}` is the start time; None for `base_config.name`. With `resume`, None is the
            latest run.
        variant: variant of the folder's config.yaml, for a new run; None for `default`.
        settings: settings on top of the files, as sections (`{"acer_config": {"gamma": 0.9}}`) or as paths
            (`{"acer_config.gamma": 0.9}`).
        callbacks: receive progress, evaluations and checkpoints, and may stop the run.
        resume: whether an existing run of the environment folder continues.
        replace: whether a new run replaces an existing run of its name; not with `resume`.
        log: receives lines of text for people, for example `print`; None for none.

    Returns:
        The result with the run folder, which `algorithm.load` takes.

    Raises:
        UserError: for settings or an environment that cannot be used; the other exceptions are those whose exit
            status the documentation of the command line lists.
    """
    log = log or _ignore
    has_folder = not (callable(env) or _is_id(env))
    _check_arguments(has_folder, variant, resume, replace)
    tree = _expand(settings or {})
    if name and not resume:
        tree = merge(tree, {"base_config": {"name": name}})
    request = RunRequest(
        env=str(env) if has_folder else _make_label(env),
        name=name,
        variant=variant or "default",
        layers=[(SOURCE, tree)],
        replace=replace,
    )
    if not has_folder:
        return _train_without_folder(env, request, tree, callbacks, log)
    if resume:
        with resume_run(request, log) as (folder, resolved):
            recorded = read_recorded_variant(folder.path / RESULT_FILE)
            return run_training(request.env, folder, resolved, recorded, callbacks, log)
    ((run_name, resolved),) = plan_runs(request)
    if resolved.population.size is not None:
        raise UserError(
            "population_config.size is for the command line, with --population; algorithm.train trains one run"
        )
    with create_run(request, run_name, resolved) as folder:
        return run_training(request.env, folder, resolved, request.variant, callbacks, log)


def _check_arguments(has_folder: bool, variant: str | None, resume: bool, replace: bool) -> None:
    """Raise UserError for arguments of `train` that exclude one another."""
    if resume and not has_folder:
        raise UserError("resume needs an environment folder: pass its name or its path")
    if variant is not None and not has_folder:
        raise UserError(f"variant {variant!r} needs an environment folder: pass its name or its path")
    if resume and variant is not None:
        raise UserError(f"variant {variant!r} is for a new run: a run that is resumed keeps its settings")
    if resume and replace:
        raise UserError("replace is for a new run: resume continues the existing one")


def run_training(
    environment: str,
    folder: RunFolder,
    settings: Settings,
    variant: str | None,
    callbacks: Sequence[Callback],
    log: Log,
    pause_at: int | None = None,
) -> RunResult:
    """Train in a run folder that the caller has locked; result.json is written there in any case.

    With `pause_at`, training pauses at this number of env steps of the run, after an evaluation, and no report is
    written: the run is a member of a population, which reports on its members when it ends.
    """
    recorder = ResultRecorder()
    status, failure = 0, None
    exports = RunExporter(settings.base.export, AgentConfigs(settings), folder, log)
    report = ReportWriter(settings.report.report and pause_at is None, folder.path, log)
    if not folder.has_learned():
        write_origin(folder.path, describe_origin(environment, settings.base, variant), log)
    try:
        with preserve_working_directory():
            return train_in_folder(settings, folder, log, [*callbacks, exports, recorder], pause_at)
    except BaseException as error:
        status, failure = describe_end(error)
        raise
    finally:
        if recorder.result and folder.has_learned():
            origin = describe_origin(environment, settings.base, variant)
            write_record(folder.path, {**origin, **make_record(recorder.result, status, failure)})
            exports.export_best()
            report.write()


def _train_without_folder(
    env: str | Path | MakeEnv, request: RunRequest, tree: Tree, callbacks: Sequence[Callback], log: Log
) -> RunResult:
    """Train in the environment of an id or a function, with `tree` on top of what `--init` suggests for it."""
    make = env if callable(env) else str(env)
    named: Tree = {"base_config": {"env_type": "GYM", "env_name": "env.py" if callable(env) else make}}
    roles, opened = open_environment(SOURCE, merge(named, tree), make)
    threshold = None if callable(env) else find_spec(str(env)).reward_threshold
    suggested = suggest_settings(opened, roles, threshold, make)
    for note in suggested.notes:
        log(note)
    ((run_name, settings),) = plan_runs_from((request.env, suggested.tree), {}, request)
    with open_new_run(request.env, None, run_name, settings, request.replace) as folder:
        if callable(env):
            folder.make_env = env
            _write_env_file(folder.path / "env.py", env)
        return run_training(request.env, folder, settings, None, callbacks, log)


def _make_label(env: str | Path | MakeEnv) -> str:
    """Return the name of the environment of an id or a function, for its run folder."""
    return getattr(env, "__name__", "environment").strip("<>") if callable(env) else str(env)


def _write_env_file(path: Path, make: MakeEnv) -> None:
    """Write an env.py that imports `make`; none for a function that has no name to import."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", "")
    importable = module not in (None, "__main__") and name.isidentifier() and inspect.getmodule(make) is not None
    if importable and getattr(sys.modules[str(module)], name, None) is make:
        path.write_text(f'"""The environment of this run."""\n\nfrom {module} import {name} as make  # noqa: F401\n')


def _is_id(env: str | Path) -> bool:
    """Return whether `env` is an id of Gymnasium and not an environment folder."""
    if not isinstance(env, str) or not IDENTIFIER.fullmatch(env):
        return False
    return find_folder(locate_environment(env)) is None


def _expand(settings: Mapping[str, Any]) -> Tree:
    """Return the tree of settings that are given as sections, as paths, or as both."""
    tree: Tree = {}
    for path, value in settings.items():
        tree = merge(tree, nest(path, _expand(value) if isinstance(value, Mapping) else value))
    return tree


def _ignore(line: str) -> None:
    """Discard a line of text."""
