"""Train an agent in an environment's folder, or play with a trained one."""

from __future__ import annotations

import atexit
import gc
import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # before numpy is imported, which reads them once
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import argparse  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

from algorithm.cli.command_line import page, parse  # noqa: E402
from algorithm.cli.options import (  # noqa: E402
    DOCTOR,
    EPISODES,
    EXPORT,
    IMPORT,
    INIT,
    LIST,
    RESUME,
    RUN,
    TRAIN,
)
from algorithm.cli.output import Output  # noqa: E402
from algorithm.runtimes.signals import Terminated, terminable  # noqa: E402

SLOW = (TRAIN, RESUME, RUN, EXPORT)  # commands that import torch, which takes seconds

# How each kind of failure ends: exit status and line. By name, since most kinds take a while to import.
STATUSES = {
    "UserError": (2, "{error}"),
    "Unwell": (1, "{error}"),
    "UnsupportedEnvironment": (2, "{error}"),
    "EnvironmentFailed": (3, "{error}"),
    "EnvironmentBroke": (1, "{error}"),
    "Diverged": (4, "{error}"),
    "CheckpointError": (1, "{error}"),
    "ExportFailed": (1, "{error}"),
    "OSError": (1, "{kind}: {error}"),
    "HungUp": (129, "Hung up.{saved}"),
    "KeyboardInterrupt": (130, "Interrupted.{saved}"),
    "Terminated": (143, "Terminated.{saved}"),
    "MemoryError": (1, "not enough memory: {summary}"),
    "BaseException": (1, "{summary} (unexpected; --debug shows where it comes from)"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; its exit status, 0 or one of `STATUSES`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    output = Output("--json" in arguments)
    if not arguments:
        print(page())
        return 0
    with terminable():
        return _command(arguments, output)


def _command(arguments: list[str], output: Output) -> int:
    try:
        options = parse(arguments)
        commands = {RUN: _play, EXPORT: _export, LIST: _list, INIT: _init, IMPORT: _import, DOCTOR: _doctor}
        command = commands.get(options.mode, _train)
        if options.mode in SLOW:
            output.plain(f"loading PyTorch for {options.env} ...")
        _call(command, options, output)
        status = 0
    except (Exception, KeyboardInterrupt, Terminated) as error:  # whatever happens has a status and one line
        status, message = _status(error, output.saved)
        output.fail(message, error, "--debug" in arguments)
    output.finish(status)
    return status


def _call(command: Callable[[argparse.Namespace, Output], None], options: argparse.Namespace, output: Output) -> None:
    try:
        command(options, output)
    except SystemExit as error:  # in an nn.py, for example; the exit status is this program's to decide
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


def _status(error: BaseException, saved: str = "") -> tuple[int, str]:
    from algorithm.errors import summarize
    from algorithm.runs.user_code import blame

    error = blame(error)
    status, line = next(STATUSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STATUSES)
    return status, line.format(error=error, kind=type(error).__name__, summary=summarize(error), saved=saved)


def _train(options: argparse.Namespace, output: Output) -> None:
    output.saved = " Nothing was saved."  # the imports take seconds, in which a signal may come
    from algorithm.runs.results import spread, spread_lines
    from algorithm.runs.session import create, planned, resumed

    began: list[dict] = []  # the record of each run, in order
    try:
        if options.mode == RESUME:
            with resumed(options, output.say) as (folder, settings):
                _learn(options, output, folder, settings, began)
        else:
            for name, settings in planned(options):
                with create(options, name, settings) as folder:
                    _learn(options, output, folder, settings, began)
    finally:
        if options.repeat:
            output.result = {"runs": began, "spread": spread(began)}
            for line in spread_lines(began):
                output.say(line)
        elif began:
            output.result = began[0]


def _learn(options: argparse.Namespace, output: Output, folder, settings, began: list[dict]) -> None:
    """Train in a run's folder; result.json is written there, whatever ends it."""
    from algorithm.cli.display import live
    from algorithm.cli.report import describe_saved, report
    from algorithm.export.export import Exports
    from algorithm.runs.build import train
    from algorithm.runs.origin import kept_variant, origin
    from algorithm.runs.results import FILE, begin, record_of, write
    from algorithm.runs.run_folder import environment_folder
    from algorithm.runs.torch_setup import kept_directory

    _collect_garbage()
    if options.logger_in_file:
        output.keep(folder.path / "log.txt")
    env_name = settings.base.env_name or options.env
    what = options.env if env_name.endswith(".py") else env_name
    output.say(f"training {what} with {settings.base.algorithm} in {folder}")
    results = []
    status = 0
    new = options.mode != RESUME
    variant = options.config or "default" if new else kept_variant(folder.path / FILE)
    try:
        if new:
            begin(folder.path, origin(options.env, settings, variant), output.say)
        exports = Exports(settings, folder, output.say)
        with kept_directory(), live(output.console, output.say) as show:
            result = train(settings, folder, output.say, show, results.append, exports.saved)
    except BaseException as error:
        status, _ = _status(error)
        raise
    finally:
        output.saved = describe_saved(options.env, folder)
        if results and folder.has_learned():
            record = {**origin(options.env, settings, variant), **record_of(results[0], status)}
            write(folder.path, record)
            began.append({"run": folder.given.as_posix(), **record})
            exports.ended()
        elif new:
            output.stop_keeping()
            output.removed[str(folder.path)] = str(environment_folder(options.env))
    report(output.say, options.env, folder, result)


def _play(options: argparse.Namespace, output: Output) -> None:
    from algorithm.runs.build import play
    from algorithm.runs.make_env import evaluation_copies
    from algorithm.runs.results import played_record
    from algorithm.runs.session import found
    from algorithm.specs import of_role
    from algorithm.training.evaluator import mode_name
    from algorithm.training.formatting import format_number

    _collect_garbage()
    folder, settings = found(options, output.say)
    if options.logger_in_file:
        output.keep(folder.path / "log.txt")
    copies = options.agents or (1 if options.render else evaluation_copies(settings))
    episodes = options.max_iter * copies if options.max_iter else EPISODES
    greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
    played = play(settings, folder, episodes, greedy, options.render, options.ckpt, copies, output.say)
    for role, result in played.items():
        std, length = format_number(result.std), format_number(result.length)
        output.say(f"{folder}{of_role(role)}: {result}; std {std}, mean length {length}")
    output.result = {
        "run": folder.given.as_posix(),
        "mode": mode_name(greedy),
        "evaluation": played_record(played),
    }


def _export(options: argparse.Namespace, output: Output) -> None:
    from algorithm.export.command import run
    from algorithm.export.export import ExportFailed

    output.result, failed = run(options, output.say)
    if failed:
        raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])


def _list(options: argparse.Namespace, output: Output) -> None:
    from algorithm.runs.results import runs, table

    records = runs(options.env, output.say)
    output.result = {"runs": records}
    output.show(table(records))


def _init(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.init import write
    from algorithm.runs.session import layers

    written = write(options.init, layers(options), options.force)
    output.result = {"folder": written.folder.as_posix(), "notes": list(written.notes)}
    output.say(f"wrote {' and '.join(map(str, written.files))}")
    for line in written.notes:
        output.say(line)
    output.say(f"train it: python main.py {options.init}")


def _doctor(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.doctor.report import examine

    examine(options, output)


def _import(options: argparse.Namespace, output: Output) -> None:
    from algorithm.mlagents.importing import import_file

    imported = import_file(Path(options.import_mlagents), options.force)
    output.result = {
        "folders": [folder.as_posix() for folder in imported.folders],
        "not_served": imported.lost,
        "notes": imported.notes,
    }
    for folder in imported.folders:
        output.say(f"wrote {folder / 'config.yaml'} and {folder / 'nn.py'}")
    for key, why in imported.lost.items():
        output.say(f"{key}: not served: {why}")
    for line in imported.notes:
        output.say(line)
    for folder in imported.folders:
        output.say(f"train it: python main.py {folder.parent.name}/{folder.name}")


def _collect_garbage() -> None:
    """Turn the garbage collector on, if it is off; what was imported so far lives as long as the process."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _leave(statuses: list[int]) -> None:
    """End the process with the status of `main`, if it is known, instead of taking the interpreter apart."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


if __name__ == "__main__":
    gc.disable()  # it would search all that torch consists of again and again while it is imported
    ended: list[int] = []
    atexit.register(_leave, ended)  # before anything else registers, so that it is called last
    ended.append(main())
    sys.exit(ended[0])
