"""The commands of the command line, each with the modules that it imports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from algorithm.cli.modes import (
    COMPARE,
    DOCTOR,
    EXPORT,
    GALLERY,
    IMPORT,
    INIT,
    LIST,
    REPORT,
    RESUME,
    RUN,
    TRAIN,
    TUNE,
)
from algorithm.program import get_command

if TYPE_CHECKING:  # imports that take seconds
    import argparse

    from algorithm.cli.output import Output
    from algorithm.config.loader import Settings
    from algorithm.parts.run_folder import RunFolder


def _train(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import make_request
    from algorithm.cli.population import train_if_population
    from algorithm.runs.results import format_repeats, summarize_repeats
    from algorithm.runs.run_requests import plan_runs
    from algorithm.runs.session import create_run, resume_run

    request = make_request(options)
    planned = [] if options.mode == RESUME else plan_runs(request, output.log)
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
        from algorithm.tools.reports.compare_command import compare_repeats

        compare_repeats([record["run"] for record in records], output)


def _learn(
    options: argparse.Namespace, output: Output, folder: RunFolder, settings: Settings, records: list[dict]
) -> None:
    """Train in a run folder with a display, and report the result."""
    from algorithm.api import run_training
    from algorithm.cli.display import live_display
    from algorithm.parts.env_folder import find_folder
    from algorithm.runs.callbacks import TimeLimit
    from algorithm.runs.results import RESULT_FILE, read_record, read_recorded_variant
    from algorithm.tools.reports.command import describe_saved, report_result

    _collect_garbage()
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    env_name = settings.base.env_name or options.env
    env_label = options.env if env_name.endswith(".py") else env_name
    output.log(f"training {env_label} with {settings.base.algorithm} in {folder}")
    new = options.mode != RESUME
    source = find_folder(options.env)
    variant = (options.config or "default") if source else None
    if not new:
        variant = read_recorded_variant(folder.path / RESULT_FILE)
    limits = [TimeLimit(options.seconds)] if options.seconds else []
    try:
        with live_display(output.console, output.log, str(folder)) as display:
            result = run_training(options.env, folder, settings, variant, [display, *limits], output.log)
    finally:
        output.save_note = describe_saved(options.env, folder)
        if folder.has_learned():
            records.append({"run": folder.given_path.as_posix(), **read_record(folder.path, output.log)})
        elif new:
            output.close_log_file()
            if source:
                output.removed_folders[str(folder.path)] = str(source)
            if folder.replacement.has_backup:
                output.log(f"the new run has no checkpoint: {folder} is again the run that it was to replace")
    report_result(output.log, options.env, folder, result)


def _tune(options: argparse.Namespace, output: Output) -> None:
    from algorithm.tools.tune.command import tune

    _collect_garbage()
    tune(options, output)


def _play(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import make_request
    from algorithm.cli.display import display_playing
    from algorithm.config.sections import count_evaluation_episodes
    from algorithm.parts.lock import check_links
    from algorithm.parts.make_env import Environments
    from algorithm.runs.results import make_evaluation_record
    from algorithm.runs.session import find_run
    from algorithm.runs.trained_agent import play
    from algorithm.specs import role_suffix
    from algorithm.training.evaluator import get_mode_name
    from algorithm.training.metrics import format_number

    _collect_garbage()
    folder, settings = find_run(make_request(options), output.log)
    if options.logger_in_file or options.video:
        check_links(folder.given_path)
    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    n_envs = options.agents or (1 if options.render else Environments(settings, folder).count_evaluation_envs())
    episodes = options.max_iter * n_envs if options.max_iter else count_evaluation_episodes(settings.goal)
    greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
    played = (settings, folder, episodes, greedy, options.render, options.ckpt, n_envs, output.log)
    with display_playing(output.console, output.log) as show:
        evaluation = play(*played, video=options.video, show=show)
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
    from algorithm.tools.export.export import ExportFailed, run_export
    from algorithm.tools.export.graph import BARRACUDA_OPSET, OPSET

    opset = BARRACUDA_OPSET if options.barracuda else OPSET
    output.result, failed = run_export(make_request(options), options.ckpt, opset, output.log)
    if failed:
        raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])


def _report(options: argparse.Namespace, output: Output) -> None:
    from algorithm.parts.env_folder import find_run_path
    from algorithm.tools.reports.report_files import write_files

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


def _gallery(options: argparse.Namespace, output: Output) -> None:
    from algorithm.tools.reports.gallery_command import show_gallery

    show_gallery(options, output)


def _list(options: argparse.Namespace, output: Output) -> None:
    from algorithm.runs.results import list_runs
    from algorithm.tools.reports.command import make_table

    records = list_runs(options.env, output.log)
    output.result = {"runs": records}
    output.print_table(make_table(records))


def _compare(options: argparse.Namespace, output: Output) -> None:
    from algorithm.tools.reports.compare_command import compare_runs

    compare_runs(options, output)


def _init(options: argparse.Namespace, output: Output) -> None:
    from algorithm.cli.command_line import collect_layers
    from algorithm.tools.init.command import write_folder

    result = write_folder(options.init, collect_layers(options), options.force)
    output.result = {"folder": result.folder.as_posix(), "notes": list(result.notes)}
    output.log(f"wrote {' and '.join(map(str, result.files))}")
    for line in result.notes:
        output.log(line)
    output.log(f"train it: {get_command()} {options.init}")


def _doctor(options: argparse.Namespace, output: Output) -> None:
    from algorithm.tools.doctor.report import run_doctor

    run_doctor(options, output)


def _import(options: argparse.Namespace, output: Output) -> None:
    from algorithm.tools.mlagents.importing import import_file

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


def check_request(options: argparse.Namespace, output: Output) -> None:
    """Raise UserError for a run that cannot be trained or played, before torch is imported, which takes seconds."""
    from algorithm.cli.command_line import make_request
    from algorithm.runs.run_requests import check_existing_run, check_new_runs, check_settings

    request = make_request(options)
    if options.mode == TRAIN:
        check_new_runs(request)
    elif options.mode == TUNE:
        check_settings(request)
    else:
        check_existing_run(request, output.log)


Command = Callable[["argparse.Namespace", "Output"], None]
COMMANDS: Mapping[str, Command] = {
    TRAIN: _train,
    RESUME: _train,
    RUN: _play,
    EXPORT: _export,
    REPORT: _report,
    COMPARE: _compare,
    GALLERY: _gallery,
    LIST: _list,
    INIT: _init,
    IMPORT: _import,
    DOCTOR: _doctor,
    TUNE: _tune,
}  # by mode
