"""The commands of the command line, and their exit statuses."""

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
from typing import TYPE_CHECKING  # noqa: E402

from algorithm.cli.command_line import make_start_page, parse_arguments  # noqa: E402
from algorithm.cli.options import (  # noqa: E402
    COMPARE,
    DEFAULT_EPISODES,
    DOCTOR,
    EXPORT,
    IMPORT,
    INIT,
    LIST,
    REPORT,
    RESUME,
    RUN,
    TRAIN,
    TUNE,
)
from algorithm.cli.output import Output  # noqa: E402
from algorithm.program import get_command  # noqa: E402
from algorithm.runtimes.signals import Terminated, raise_on_stop_signals  # noqa: E402

if TYPE_CHECKING:  # imports that take seconds
    from algorithm.config.loader import Settings
    from algorithm.runs.run_folder import RunFolder

TORCH_COMMANDS = (TRAIN, RESUME, RUN, EXPORT, TUNE)  # commands that import torch, which takes seconds


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit status: 0, or one of `STATUSES`."""
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
        commands = {
            RUN: _play,
            EXPORT: _export,
            REPORT: _report,
            LIST: _list,
            INIT: _init,
            IMPORT: _import,
            DOCTOR: _doctor,
            TUNE: _tune,
            COMPARE: _compare,
        }
        command = commands.get(options.mode, _train)
        if options.mode in (TRAIN, RESUME):  # before the first line, after which a signal may come at any time
            output.save_note = " Nothing was saved."
        if options.mode in TORCH_COMMANDS:
            output.log_plain(f"loading PyTorch for {options.env} ...")
        _run_command(command, options, output)
        status = 0
    except (
        Exception,
        KeyboardInterrupt,
        Terminated,
    ) as error:  # every error has an exit status and a message of one line
        from algorithm.runs.faults import describe_end

        status, message = describe_end(error, output.save_note)
        output.fail(message, error, "--debug" in arguments)
    output.finish(status)
    return status


def _run_command(
    command: Callable[[argparse.Namespace, Output], None], options: argparse.Namespace, output: Output
) -> None:
    try:
        command(options, output)
    except SystemExit as error:  # in an nn.py, for example; it must not decide the exit status
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


def _train(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import make_request
    from algorithm.cli.population import train_if_population
    from algorithm.runs.results import format_repeats, summarize_repeats
    from algorithm.runs.session import create_run, plan_runs, resume_run

    request = make_request(options)
    planned = [] if options.mode == RESUME else plan_runs(request)
    if train_if_population(options, output, request, planned):
        return
    records: list[dict] = []  # the record of each run, in order
    try:
        if options.mode == RESUME:
            with resume_run(request, output.log) as (folder, settings):
                _learn(options, output, folder, settings, records)
        else:
            for name, settings in planned:
                with create_run(request, name, settings) as folder:
                    _learn(options, output, folder, settings, records)
    finally:
        if options.repeat:
            output.result = {"runs": records, "spread": summarize_repeats(records)}
            for line in format_repeats(records):
                output.log(line)
        elif records:
            output.result = records[0]
    if len(records) > 1:
        from algorithm.cli.compare import compare_repeats

        compare_repeats([record["run"] for record in records], output)


def _learn(
    options: argparse.Namespace, output: Output, folder: RunFolder, settings: Settings, records: list[dict]
) -> None:
    """Train in a run folder with a display, and report the result."""
    from algorithm.api import run_training
    from algorithm.cli.display import live_display
    from algorithm.cli.report import describe_saved, report_result
    from algorithm.runs.origin import read_recorded_variant
    from algorithm.runs.results import RESULT_FILE, read_record
    from algorithm.runs.run_folder import find_environment_folder

    _collect_garbage()
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    env_name = settings.base.env_name or options.env
    env_label = options.env if env_name.endswith(".py") else env_name
    output.log(f"training {env_label} with {settings.base.algorithm} in {folder}")
    new = options.mode != RESUME
    variant = options.config or "default" if new else read_recorded_variant(folder.path / RESULT_FILE)
    try:
        with live_display(output.console, output.log, f"{options.env} {folder.path.name}") as display:
            result = run_training(options.env, folder, settings, variant, [display], output.log)
    finally:
        output.save_note = describe_saved(options.env, folder)
        if folder.has_learned():
            records.append({"run": folder.given_path.as_posix(), **read_record(folder.path, output.log)})
        elif new:
            output.close_log_file()
            output.removed_folders[str(folder.path)] = str(find_environment_folder(options.env))
    report_result(output.log, options.env, folder, result)


def _tune(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.tune import tune

    _collect_garbage()
    tune(options, output)


def _play(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import make_request
    from algorithm.runs.make_env import Environments
    from algorithm.runs.results import make_evaluation_record
    from algorithm.runs.session import find_run
    from algorithm.runs.trained_agent import play
    from algorithm.specs import role_suffix
    from algorithm.training.evaluator import get_mode_name
    from algorithm.training.metrics import format_number

    _collect_garbage()
    folder, settings = find_run(make_request(options), output.log)
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    n_envs = options.agents or (1 if options.render else Environments(settings, folder).count_evaluation_envs())
    episodes = options.max_iter * n_envs if options.max_iter else DEFAULT_EPISODES
    greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
    evaluation = play(
        settings, folder, episodes, greedy, options.render, options.ckpt, n_envs, output.log, video=options.video
    )
    for role, result in evaluation.items():
        std, length = format_number(result.std), format_number(result.length)
        output.log(f"{folder}{role_suffix(role)}: {result}; std {std}, mean length {length}")
    output.result = {
        "run": folder.given_path.as_posix(),
        "mode": get_mode_name(greedy),
        "evaluation": make_evaluation_record(evaluation),
    }


def _export(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import make_request
    from algorithm.export.export import ExportFailed, run_export
    from algorithm.export.graph import BARRACUDA_OPSET, OPSET

    opset = BARRACUDA_OPSET if options.barracuda else OPSET
    output.result, failed = run_export(make_request(options), options.ckpt, opset, output.log)
    if failed:
        raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])


def _report(options: argparse.Namespace, output: Output) -> None:
    from algorithm.reports.report_files import write_files
    from algorithm.runs.env_folder import find_run_path

    folder = find_run_path(options.env, options.name)
    report, card = write_files(folder, output.log)
    output.result = {
        "run": folder.as_posix(),
        "report": report.as_posix(),
        "model_card": None if card is None else card.as_posix(),
    }
    output.log(f"report:     {report}")
    if card:
        output.log(f"model card: {card}")


def _list(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.report import make_table
    from algorithm.runs.results import list_runs

    records = list_runs(options.env, output.log)
    output.result = {"runs": records}
    output.print_table(make_table(records))


def _compare(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.compare import compare_runs

    compare_runs(options, output)


def _init(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import collect_layers
    from algorithm.cli.init import write_folder

    result = write_folder(options.init, collect_layers(options), options.force)
    output.result = {"folder": result.folder.as_posix(), "notes": list(result.notes)}
    output.log(f"wrote {' and '.join(map(str, result.files))}")
    for line in result.notes:
        output.log(line)
    output.log(f"train it: {get_command()} {options.init}")


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
        output.log(f"{key}: not supported: {reason}")
    for line in imported.notes:
        output.log(line)
    for folder in imported.folders:
        output.log(f"train it: {get_command()} {folder.parent.name}/{folder.name}")


def _collect_garbage() -> None:
    """Turn the garbage collector on, if it is off, and exclude all objects of the imported modules from it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _exit_process(statuses: list[int]) -> None:
    """End the process with the status of `main`, if it is known, without the teardown of the interpreter."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


def run_process() -> None:
    """Run the command line of this process and end the process with its exit status."""
    gc.disable()  # during the import of torch it would search its many objects again and again
    final_status: list[int] = []
    atexit.register(_exit_process, final_status)  # before anything else registers, so that it is called last
    final_status.append(main())
    sys.exit(final_status[0])
