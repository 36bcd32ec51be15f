"""Train an agent in an environment's folder, or play with a trained one."""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # before numpy is imported, which reads them once
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import argparse  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from algorithm.experiment.command_line import (  # noqa: E402
    DOCTOR,
    EPISODES,
    EXPORT,
    IMPORT,
    INIT,
    LIST,
    RESUME,
    RUN,
    page,
    parse,
)
from algorithm.experiment.output import Output  # noqa: E402
from algorithm.runtimes.signals import Terminated, terminable  # noqa: E402

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
    "KeyboardInterrupt": (130, "interrupted{saved}"),
    "Terminated": (143, "terminated{saved}"),
    "MemoryError": (1, "not enough memory: {summary}"),
    "BaseException": (1, "{summary} (unexpected; --debug shows where it comes from)"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; its exit status, 0 or one of `STATUSES`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(page())
        return 0
    with terminable():
        return _command(arguments, Output("--json" in arguments))


def _command(arguments: list[str], output: Output) -> int:
    try:
        options = parse(arguments)
        commands = {RUN: _play, EXPORT: _export, LIST: _list, INIT: _init, IMPORT: _import, DOCTOR: _doctor}
        command = commands.get(options.mode, _train)
        command(options, output)
        status = 0
    except (Exception, KeyboardInterrupt, Terminated) as error:  # whatever happens has a status and one line
        status, message = _status(error, output.saved)
        output.fail(message, error, "--debug" in arguments)
    output.finish(status)
    return status


def _status(error: BaseException, saved: bool = False) -> tuple[int, str]:
    from algorithm.experiment.user_code import blame
    from algorithm.failures import summarize

    error = blame(error)
    status, line = next(STATUSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STATUSES)
    said = "; what was learned is saved" if saved else ""
    return status, line.format(error=error, kind=type(error).__name__, summary=summarize(error), saved=said)


def _train(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.results import spread, spread_lines
    from algorithm.experiment.session import create, planned, resumed

    began: list[dict] = []  # the record of each run, in order
    try:
        if options.mode == RESUME:
            folder, settings, changes = resumed(options)
            for line in changes:
                output.say(line)
            _learn(options, output, folder, settings, began)
        else:
            for name, settings in planned(options):
                _learn(options, output, create(options, name, settings), settings, began)
    finally:
        if options.repeat:
            output.result = {"runs": began, "spread": spread(began)}
            for line in spread_lines(began):
                output.say(line)
        elif began:
            output.result = began[0]


def _learn(options: argparse.Namespace, output: Output, folder, settings, began: list[dict]) -> None:
    """Train in a run's folder; result.json is written there, whatever ends it."""
    from algorithm.experiment.assembly import train
    from algorithm.experiment.display import live
    from algorithm.experiment.export.export import Exports
    from algorithm.experiment.report import report
    from algorithm.experiment.results import record_of, write

    if options.logger_in_file:
        output.keep(folder.path / "log.txt")
    output.say(f"training {settings.base.env_name or options.env} with {settings.base.algorithm} in {folder.path}")
    results = []
    status = 0
    try:
        exports = Exports(settings, folder, output.say)
        with live(output.console, output.say) as show:
            result = train(settings, folder, output.say, show, results.append, exports.saved)
    except BaseException as error:
        status, _ = _status(error)
        raise
    finally:
        if results:
            record = record_of(results[0], status)
            write(folder.path, record)
            folder.forget_replaced()
            output.saved = True
            began.append({"run": folder.path.as_posix(), **record})
            exports.ended()
        elif options.mode != RESUME:
            output.stop_keeping()
            folder.discard()
    report(output.say, options.env, folder, result)


def _play(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.assembly import play
    from algorithm.experiment.results import played_record
    from algorithm.experiment.session import found
    from algorithm.experiment.simulators import evaluation_copies

    folder, settings = found(options)
    if options.logger_in_file:
        output.keep(folder.path / "log.txt")
    copies = options.agents or (1 if options.render else evaluation_copies(settings))
    episodes = options.max_iter * copies if options.max_iter else EPISODES
    played = play(settings, folder, episodes, options.disable_sample, options.render, options.ckpt, copies, output.say)
    for role, result in played.items():
        of = f" of {role}" if len(played) > 1 else ""
        output.say(
            f"{folder.path}{of}: return {result.mean:.1f} +- {result.std:.1f}, "
            f"length {result.length:.1f}, over {len(result.returns)} episodes"
        )
    output.result = {"run": folder.path.as_posix(), "evaluation": played_record(played)}


def _export(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.export.command import run
    from algorithm.experiment.export.export import ExportFailed

    output.result, failed = run(options, output.say)
    if failed:
        raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])


def _list(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.results import runs, table

    records = runs(options.env)
    output.result = {"runs": records}
    output.show(table(records))


def _init(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.scaffold import write
    from algorithm.experiment.session import layers

    folder = write(options.init, layers(options))
    output.result = {"folder": folder.as_posix()}
    output.say(f"wrote {folder / 'config.yaml'} and {folder / 'nn.py'}")
    output.say(f"train it: python main.py {options.init}")


def _doctor(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.doctor.report import examine

    examine(options, output)


def _import(options: argparse.Namespace, output: Output) -> None:
    from algorithm.experiment.mlagents.importing import import_file

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


if __name__ == "__main__":
    sys.exit(main())
