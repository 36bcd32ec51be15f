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

from algorithm.cli.command_line import make_start_page, parse_arguments  # noqa: E402
from algorithm.cli.options import (  # noqa: E402
    DEFAULT_EPISODES,
    DOCTOR,
    EXPORT,
    IMPORT,
    INIT,
    LIST,
    RESUME,
    RUN,
    TRAIN,
)
from algorithm.cli.output import Output  # noqa: E402
from algorithm.runtimes.signals import Terminated, raise_on_stop_signals  # noqa: E402

TORCH_COMMANDS = (TRAIN, RESUME, RUN, EXPORT)  # commands that import torch, which takes seconds

# How each kind of failure ends: exit status and line. By name, since most kinds take a while to import.
STATUSES = {
    "UserError": (2, "{error}"),
    "DoctorFailed": (1, "{error}"),
    "UnsupportedEnvironment": (2, "{error}"),
    "EnvironmentStartError": (3, "{error}"),
    "EnvironmentCrashed": (1, "{error}"),
    "Diverged": (4, "{error}"),
    "CheckpointError": (1, "{error}"),
    "ExportFailed": (1, "{error}"),
    "OSError": (1, "{kind}: {error}"),
    "TerminalClosed": (129, "Hung up.{saved}"),
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
        print(make_start_page())
        return 0
    with raise_on_stop_signals():
        return _command(arguments, output)


def _command(arguments: list[str], output: Output) -> int:
    try:
        options = parse_arguments(arguments)
        commands = {RUN: _play, EXPORT: _export, LIST: _list, INIT: _init, IMPORT: _import, DOCTOR: _doctor}
        command = commands.get(options.mode, _train)
        if options.mode in TORCH_COMMANDS:
            output.log_plain(f"loading PyTorch for {options.env} ...")
        _run_command(command, options, output)
        status = 0
    except (Exception, KeyboardInterrupt, Terminated) as error:  # whatever happens has a status and one line
        status, message = _describe_end(error, output.save_note)
        output.fail(message, error, "--debug" in arguments)
    output.finish(status)
    return status


def _run_command(
    command: Callable[[argparse.Namespace, Output], None], options: argparse.Namespace, output: Output
) -> None:
    try:
        command(options, output)
    except SystemExit as error:  # in an nn.py, for example; the exit status is this program's to decide
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


def _describe_end(error: BaseException, saved: str = "") -> tuple[int, str]:
    from algorithm.errors import summarize_error
    from algorithm.runs.user_code import find_user_error

    error = find_user_error(error)
    status, line = next(STATUSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STATUSES)
    return status, line.format(error=error, kind=type(error).__name__, summary=summarize_error(error), saved=saved)


def _train(options: argparse.Namespace, output: Output) -> None:
    output.save_note = " Nothing was saved."  # the imports take seconds, in which a signal may come
    from algorithm.runs.results import format_repeats, summarize_repeats
    from algorithm.runs.session import create_run, plan_runs, resume_run

    records: list[dict] = []  # the record of each run, in order
    try:
        if options.mode == RESUME:
            with resume_run(options, output.log) as (folder, settings):
                _learn(options, output, folder, settings, records)
        else:
            for name, settings in plan_runs(options):
                with create_run(options, name, settings) as folder:
                    _learn(options, output, folder, settings, records)
    finally:
        if options.repeat:
            output.result = {"runs": records, "spread": summarize_repeats(records)}
            for line in format_repeats(records):
                output.log(line)
        elif records:
            output.result = records[0]


def _learn(options: argparse.Namespace, output: Output, folder, settings, records: list[dict]) -> None:
    """Train in a run's folder; result.json is written there, whatever ends it."""
    from algorithm.cli.display import live_display
    from algorithm.cli.report import describe_saved, report_result
    from algorithm.export.export import RunExporter
    from algorithm.runs.build import train
    from algorithm.runs.callbacks import ResultRecorder
    from algorithm.runs.origin import describe_origin, read_recorded_variant
    from algorithm.runs.results import RESULT_FILE, make_record, write_origin, write_record
    from algorithm.runs.run_folder import find_environment_folder
    from algorithm.runs.torch_setup import preserve_working_directory

    _collect_garbage()
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    env_name = settings.base.env_name or options.env
    env_label = options.env if env_name.endswith(".py") else env_name
    output.log(f"training {env_label} with {settings.base.algorithm} in {folder}")
    recorder = ResultRecorder()
    status = 0
    new = options.mode != RESUME
    variant = options.config or "default" if new else read_recorded_variant(folder.path / RESULT_FILE)
    try:
        if new:
            write_origin(folder.path, describe_origin(options.env, settings, variant), output.log)
        exports = RunExporter(settings, folder, output.log)
        with preserve_working_directory(), live_display(output.console, output.log) as display:
            result = train(settings, folder, output.log, [display, exports, recorder])
    except BaseException as error:
        status, _ = _describe_end(error)
        raise
    finally:
        output.save_note = describe_saved(options.env, folder)
        if recorder.result and folder.has_learned():
            record = {**describe_origin(options.env, settings, variant), **make_record(recorder.result, status)}
            write_record(folder.path, record)
            records.append({"run": folder.given_path.as_posix(), **record})
            exports.export_best()
        elif new:
            output.close_log_file()
            output.removed_folders[str(folder.path)] = str(find_environment_folder(options.env))
    report_result(output.log, options.env, folder, result)


def _play(options: argparse.Namespace, output: Output) -> None:
    from algorithm.runs.make_env import count_evaluation_envs
    from algorithm.runs.play import play
    from algorithm.runs.results import make_evaluation_record
    from algorithm.runs.session import find_run
    from algorithm.specs import role_suffix
    from algorithm.training.evaluator import get_mode_name
    from algorithm.training.metrics import format_number

    _collect_garbage()
    folder, settings = find_run(options, output.log)
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    n_envs = options.agents or (1 if options.render else count_evaluation_envs(settings))
    episodes = options.max_iter * n_envs if options.max_iter else DEFAULT_EPISODES
    greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
    evaluation = play(settings, folder, episodes, greedy, options.render, options.ckpt, n_envs, output.log)
    for role, result in evaluation.items():
        std, length = format_number(result.std), format_number(result.length)
        output.log(f"{folder}{role_suffix(role)}: {result}; std {std}, mean length {length}")
    output.result = {
        "run": folder.given_path.as_posix(),
        "mode": get_mode_name(greedy),
        "evaluation": make_evaluation_record(evaluation),
    }


def _export(options: argparse.Namespace, output: Output) -> None:
    from algorithm.export.export import ExportFailed, run_export

    output.result, failed = run_export(options, output.log)
    if failed:
        raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])


def _list(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.run_table import make_table
    from algorithm.runs.results import list_runs

    records = list_runs(options.env, output.log)
    output.result = {"runs": records}
    output.print_table(make_table(records))


def _init(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.init import write_folder
    from algorithm.runs.session import read_layers

    result = write_folder(options.init, read_layers(options), options.force)
    output.result = {"folder": result.folder.as_posix(), "notes": list(result.notes)}
    output.log(f"wrote {' and '.join(map(str, result.files))}")
    for line in result.notes:
        output.log(line)
    output.log(f"train it: python main.py {options.init}")


def _doctor(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.doctor.report import run_doctor

    run_doctor(options, output)


def _import(options: argparse.Namespace, output: Output) -> None:
    from algorithm.mlagents.importing import import_file

    imported = import_file(Path(options.import_mlagents), options.force)
    output.result = {
        "folders": [folder.as_posix() for folder in imported.folders],
        "not_served": imported.unsupported,
        "notes": imported.notes,
    }
    for folder in imported.folders:
        output.log(f"wrote {folder / 'config.yaml'} and {folder / 'nn.py'}")
    for key, reason in imported.unsupported.items():
        output.log(f"{key}: not served: {reason}")
    for line in imported.notes:
        output.log(line)
    for folder in imported.folders:
        output.log(f"train it: python main.py {folder.parent.name}/{folder.name}")


def _collect_garbage() -> None:
    """Turn the garbage collector on, if it is off; what was imported so far lives as long as the process."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _exit_process(statuses: list[int]) -> None:
    """End the process with the status of `main`, if it is known, instead of taking the interpreter apart."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


if __name__ == "__main__":
    gc.disable()  # it would search all that torch consists of again and again while it is imported
    final_status: list[int] = []
    atexit.register(_exit_process, final_status)  # before anything else registers, so that it is called last
    final_status.append(main())
    sys.exit(final_status[0])
