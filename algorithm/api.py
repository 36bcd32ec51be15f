"""The Python API: training from a program."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from algorithm.config.loader import Settings
from algorithm.config.registry import find_run_tool
from algorithm.config.yaml_layers import Tree, make_tree, merge
from algorithm.errors import UserError
from algorithm.networks import Blueprint
from algorithm.parts.env_folder import locate_environment
from algorithm.parts.provenance import describe_provenance
from algorithm.parts.run_folder import RunFolder
from algorithm.records_io import write_json
from algorithm.runs.build import train as train_in_folder
from algorithm.runs.callbacks import Callback, ResultRecorder, RunResult
from algorithm.runs.results import RESULT_FILE, make_record, read_recorded_variant, write_origin
from algorithm.runs.run_requests import RunRequest, create_run, plan_runs, resume_run

SOURCE = "settings"  # of the settings that a program passes, in messages
# Arguments of `train` by the option of the command line that errors of both name.
ARGUMENTS = {"--resume": "resume=True", "--force": "replace=True", "-n": "name=..."}
OPTION = re.compile(rf"(?<![\w-])({'|'.join(ARGUMENTS)})(?![\w-])")
MakeEnv = Callable[..., Any]  # returns a gymnasium.Env
Log = Callable[[str], None]


def train(
    env: str | Path | MakeEnv,
    *,
    name: str | None = None,
    variant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    algorithm: str | None = None,
    blueprint: Blueprint | Callable[..., Blueprint] | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    replace: bool = False,
    log: Log | None = None,
) -> RunResult:
    """Train an agent in an environment and return the result of the run.

    Args:
        env: the environment: the name or the path of an environment folder (`gym/cartpole`), an id of Gymnasium
            (`CartPole-v1`, `module:Id-v0`, `namespace/Id-v0`), or a function that returns a `gymnasium.Env`. Settings
            that are not given start from the suggestions of the command init, unless `base_config.suggest_settings`
            is false. On the command line, `--run` and `--resume` open the environment of a function only if the
            function can be imported by its name; `load` needs no environment.
        name: name of the run, `{time}` is the start time; None for `base_config.name`. With `resume`, None is the
            latest run.
        variant: variant of the folder's config.yaml, for a new run; None for `default`.
        settings: settings on top of the files, as sections (`{"acer_config": {"gamma": 0.9}}`) or as paths
            (`{"acer_config.gamma": 0.9}`).
        algorithm: `base_config.algorithm`, such as "SAC"; None for that of the settings or of the suggestions.
        blueprint: the network of a new run for an id or a function: a Blueprint, or a function that returns one and
            takes `nn_config`; None for the default network. It is written to nn.py in the run folder.
        callbacks: receive progress, evaluations and checkpoints, and may stop the run.
        resume: whether an existing run of the environment continues.
        replace: whether a new run replaces an existing run of its name; not with `resume`.
        log: receives lines of text for people, for example `print`; None for none.

    Returns:
        The result with the run folder, which `algorithm.load` takes.

    Raises:
        UserError: for settings or an environment that cannot be used; the other exceptions are those whose exit
            status the documentation of the command line lists.
    """
    log = log or (lambda line: None)
    _check_callbacks(callbacks)
    for argument, value in (("variant", variant), ("blueprint", blueprint), ("replace", replace or None)):
        if resume and value is not None:
            raise UserError(f"{argument} is for a new run: a run that is resumed keeps what it has")
    tree = _expand(settings or {})
    if name and not resume:
        tree = merge(tree, {"base_config": {"name": name}})
    if algorithm:
        tree = merge(tree, {"base_config": {"algorithm": algorithm}})
    with _name_arguments():
        request = _make_request(env, name=name, variant=variant, tree=tree, replace=replace, blueprint=blueprint)
        if resume:
            with resume_run(request, log) as (folder, resolved):
                return run_training(request.env, folder, resolved, None, callbacks, log)
        ((run_name, resolved),) = plan_runs(request, log)
        if resolved.population.size is not None:
            raise UserError(
                "population_config.size is for the command line, with --population; algorithm.train trains one run"
            )
        new_variant = request.variant if request.has_folder else None
        with create_run(request, run_name, resolved) as folder:
            return run_training(request.env, folder, resolved, new_variant, callbacks, log)


def _check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise UserError for anything else than a sequence of instances of Callback."""
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks is a {type(callbacks).__name__}: pass a list of callbacks")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            is_class = isinstance(callback, type)
            given = f"the class {callback.__name__}" if is_class else f"a {type(callback).__name__}"
            raise UserError(
                f"callbacks contains {given}: pass an instance of a subclass of algorithm.Callback, with the method "
                "on_progress, on_evaluation, on_checkpoint or on_end"
            )


@contextmanager
def _name_arguments() -> Iterator[None]:
    """Let errors name the arguments of `train` instead of the options of the command line."""
    try:
        yield
    except UserError as error:
        error.args = (OPTION.sub(lambda option: ARGUMENTS[option[0]], str(error)),)
        raise


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
    written: the run is a member of a population, which reports on its members when it ends. Without `variant`, the
    recorded one is kept.
    """
    recorder, variant = ResultRecorder(), variant or read_recorded_variant(folder.path / RESULT_FILE)
    make_exporter = find_run_tool("exporter") if settings.base.export != "never" else None
    exporter = make_exporter(settings, folder, log) if make_exporter else None
    if not folder.has_learned():
        write_origin(folder.path, describe_provenance(environment, settings.base, variant))
    exports, directory = [exporter] if exporter else [], Path.cwd()
    try:
        return train_in_folder(settings, folder, log, [*callbacks, *exports, recorder], pause_at)
    finally:
        os.chdir(directory)  # which an environment may have changed
        if recorder.result and folder.has_learned():
            origin = describe_provenance(environment, settings.base, variant)
            write_json(folder.path / RESULT_FILE, {**origin, **make_record(recorder.result)})
            if exporter:
                exporter.export_best()
            if settings.report.report and pause_at is None and (write_report := find_run_tool("report")):
                write_report(folder.path, log)


def _make_request(
    env: str | Path | MakeEnv,
    *,
    name: str | None,
    variant: str | None,
    tree: Tree,
    replace: bool,
    blueprint: Blueprint | Callable[..., Blueprint] | None,
) -> RunRequest:
    """Return the run that the arguments of `train` request. Raises UserError for an environment of another form."""
    make_env = env if callable(env) else None
    if not isinstance(env, str | Path) and make_env is None:
        raise UserError(
            f"env is a {type(env).__name__}: pass a function that returns the environment, for example "
            "lambda: gymnasium.make('CartPole-v1'), an id of Gymnasium, or an environment folder"
        )
    request = RunRequest(
        env=getattr(env, "__name__", "environment").strip("<>") if make_env else locate_environment(str(env)),
        name=name,
        variant=variant or "default",
        layers=[(SOURCE, tree)],
        replace=replace,
        make_env=make_env,
        blueprint=blueprint,
    )
    if variant is not None and not request.has_folder:
        raise UserError(f"variant {variant!r} needs an environment folder: pass its name or its path")
    if blueprint is not None and request.has_folder:
        raise UserError(f"blueprint is for an id or a function: the network of {env} is the nn.py in its folder")
    return request


def _expand(settings: Mapping[str, Any]) -> Tree:
    """Return the tree of settings that are given as sections, as paths, or as both."""
    return make_tree(
        {path: _expand(value) if isinstance(value, Mapping) else value for path, value in settings.items()}
    )
