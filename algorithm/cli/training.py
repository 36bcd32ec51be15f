"""Command lines without a command: training of new and resumed runs and of populations, and playing with a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import isnan
from typing import TYPE_CHECKING

from algorithm.cli.commands import Command, make_request
from algorithm.config.registry import find_run_tool
from algorithm.errors import UserError
from algorithm.program import get_command, join_command, role_suffix
from algorithm.training.metrics import format_number

if TYPE_CHECKING:  # imports that take seconds
    from algorithm.cli.output import Output
    from algorithm.config.loader import Settings
    from algorithm.parts.run_folder import RunFolder
    from algorithm.population.members import PopulationFolder
    from algorithm.runs.callbacks import Callback, RunResult

LOG_FILE = "log.txt"  # of --logger-in-file, in the run folder
Log = Callable[[str], None]


class TrainCommand(Command):
    """Training of new runs, and with `--resume` of an existing run."""

    heavy_module = "algorithm.api"

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that cannot be trained."""
        from algorithm.runs.run_requests import check_existing_run, check_new_runs

        output.save_note = " Nothing was saved."  # before the first line, after which a signal may come at any time
        request = make_request(options)
        if options.jobs and not options.repeat:
            raise UserError("--jobs is the number of runs of --repeat that train at the same time: give --repeat, too")
        check_existing_run(request, output.log) if options.resume else check_new_runs(request)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Train runs or a population, and report the results."""
        from algorithm.runs.run_requests import find_population, plan_runs

        request = make_request(options)
        if options.resume:
            population = find_population(request.env, request.name)
            if population is None:
                _train_runs(options, output, [])
                return
            from algorithm.population.runner import resume_population

            with resume_population(request, population, output.log) as (members, settings):
                _train_population(options, output, None, members, settings)
            return
        planned = plan_runs(request, output.log)
        name, settings = planned[0]
        if settings.population.size is None:
            _train_runs(options, output, planned)
            return
        from algorithm.population.runner import create_population

        with create_population(request, name, settings) as members:
            _train_population(options, output, request.variant if request.has_folder else None, members, settings)


def _train_runs(options: argparse.Namespace, output: Output, planned: Sequence[tuple[str, Settings]]) -> None:
    """Train the runs of these names and settings, or with `--resume` an existing run, and report their results."""
    from algorithm.runs.results import format_repeats, summarize_repeats
    from algorithm.runs.run_requests import create_run, resume_run

    request = make_request(options)
    records: list[dict] = []  # the record of each run, in order
    try:
        if options.resume:
            with resume_run(request, output.log) as (folder, settings):
                _train_run(options, output, folder, settings, records)
        if (options.jobs or 1) > 1:
            _train_side_by_side(options, output, planned, records)
        else:
            for name, settings in planned:
                with create_run(request, name, settings) as folder:
                    _train_run(options, output, folder, settings, records)
    finally:
        if options.repeat:
            output.result = {"runs": records, "spread": summarize_repeats(records)}
            for line in format_repeats(records):
                output.log(line)
        elif records:
            output.result = records[0]
    if len(records) > 1 and (compare_repeats := find_run_tool("comparison")):
        compare_repeats([record["run"] for record in records], output)


def _train_run(
    options: argparse.Namespace, output: Output, folder: RunFolder, settings: Settings, records: list[dict]
) -> None:
    """Train in a run folder with a display, and report the result."""
    from algorithm.parts.env_folder import find_folder
    from algorithm.runs.results import read_record

    if options.logger_in_file:
        output.log_to_file(folder.path / LOG_FILE)
    env_name = settings.base.env_name or options.env
    env_label = options.env if env_name.endswith(".py") else env_name
    output.log(f"training {env_label} with {settings.base.algorithm} in {folder}")
    source = find_folder(options.env)
    resume = get_command(options.env, "-n", folder.path.name, "--resume")
    try:
        with output.display_run(output.log, str(folder)) as display:
            result = _train_in_folder(options, folder, settings, display, output.log)
    finally:
        output.save_note = " Nothing was saved: the run had no checkpoint yet."
        if folder.checkpoints(keep=1):
            output.save_note = f" Checkpoint saved in {folder}; resume with: {resume}"
        if folder.has_learned():
            records.append({"run": folder.given_path.as_posix(), **read_record(folder.path, output.log)})
        elif not options.resume:
            output.close_log_file()
            if source:
                output.removed_folders[str(folder.path)] = str(source)
            if folder.is_replacement:
                output.log(f"the new run has no checkpoint: {folder} is again the run that it was to replace")
    report_result(output.log, options.env, folder, result)


def _train_side_by_side(
    options: argparse.Namespace, output: Output, planned: Sequence[tuple[str, Settings]], records: list[dict]
) -> None:
    """Train runs, `--jobs` at a time. Raises MemberFailed if one has failed, after all others have ended."""
    from algorithm.parts.make_env import check_several_runs
    from algorithm.population.member_fleet import MemberFleet
    from algorithm.population.members import MemberFailed, Members
    from algorithm.runs.lineage import LineageRow
    from algorithm.runs.results import read_record
    from algorithm.runs.run_requests import make_run_folder

    settings, request = planned[0][1], make_request(options)
    check_several_runs(settings.base, "--jobs", "train one run after another")
    if settings.base.is_on_cluster:
        raise UserError("--jobs is for runs of one machine, not for runtime CLUSTER: train one run after another")
    settings = replace(settings, population=settings.population.model_copy(update={"processes": options.jobs}))
    task = LineageRow(interval=1, member=1, parent=1, env_steps=0, settings={}, mean_return=None)
    tasks = [replace(task, member=number) for number in range(1, len(planned) + 1)]
    output.log(f"training {len(planned)} runs, {options.jobs} at a time, each with its output in its {LOG_FILE}")
    folders: list[RunFolder] = []
    failures = []
    try:
        for name, own in planned:
            folders.append(make_run_folder(request, name, own))
        paths = tuple(folder.path for folder in folders)
        members = Members(folders=paths, tree=settings.tree, train=partial(_train_one_of_several, options))
        with closing(MemberFleet(members, settings, output.log)) as fleet:
            for task, result in fleet.train(tasks):
                folder = folders[task.member - 1]
                if isinstance(result, MemberFailed):
                    output.log(f"{folder}: {result}")
                    failures.append(MemberFailed(f"{folder}: {result}"))
                else:
                    mean = format_number(result.mean_return)
                    output.log(f"{folder}: {result.env_steps:,} env steps, mean return {mean}")
    finally:
        for folder in folders:
            if folder.settle():
                records.append({"run": folder.given_path.as_posix(), **read_record(folder.path, output.log)})
        if records:
            resume = get_command(options.env, "-n", "NAME", "--resume")
            output.save_note = f" Checkpoints saved; resume each with: {resume}"
    if failures:
        raise failures[0]


def _train_one_of_several(
    options: argparse.Namespace, folder: RunFolder, settings: Settings, log: Log, pause_at: int
) -> RunResult:
    """Train a run of `--jobs` to its end, within its own process; `log` writes to its log file."""
    from algorithm.cli.display import LineDisplay

    settings = replace(settings, command_line_layers=make_request(options).layers)
    result = _train_in_folder(options, folder, settings, LineDisplay(log), log)
    report_result(log, options.env, folder, result)
    return result


def _train_in_folder(
    options: argparse.Namespace, folder: RunFolder, settings: Settings, display: Callback, log: Log
) -> RunResult:
    from algorithm.api import run_training
    from algorithm.parts.env_folder import find_folder
    from algorithm.runs.callbacks import TimeLimit

    variant = (options.config or "default") if find_folder(options.env) and not options.resume else None
    limits = [TimeLimit(options.seconds)] if options.seconds else []
    return run_training(options.env, folder, settings, variant, [display, *limits], log)


def report_result(log: Log, environment: str, folder: RunFolder, result: RunResult) -> None:
    """Log the result of a run that ended, its folder and the next commands; draw its curve."""
    counters = result.counters
    done = f"{counters.env_steps:,} env steps, {counters.episodes:,} episodes, {counters.seconds:.1f} s"
    confirmed = "and confirmed by evaluation episodes"
    if result.confirmed_by == "training":
        confirmed = "and confirmed by training episodes only, since nothing could be evaluated,"
    ends = {True: f"goal reached {confirmed} after", False: "goal not reached within", None: "done after"}
    log(f"{ends[result.goal_reached]} {done}")
    for role, value in result.returns.items():
        mean = "no episode has ended yet" if isnan(value) else format_number(value)
        log(f"mean return{role_suffix(role)} of the last training episodes: {mean}")
    for role, played in (result.evaluation or {}).items():
        log(f"last evaluation{role_suffix(role)}: {played}")
    if result.best is not None and result.best.counters.env_steps != counters.env_steps:
        log(f"best in evaluation, used by --run: the weights after {result.best.counters.env_steps:,} env steps")
    goal = folder.load_settings().goal
    draw_curve = find_run_tool("curve")
    curve = draw_curve(folder.path, goal.return_ if goal else None, log) if draw_curve else None
    run = environment, "-n", folder.path.name
    log(f"run folder: {folder}")
    if curve:
        log(f"curve:      {folder.given_path / curve.name}")
    log(f"play it:    {get_command(*run, '--run')}")
    log(f"resume:     {get_command(*run, '--resume')}")
    log(f"curves:     {join_command('tensorboard', '--logdir', str(folder))}")


def _train_population(
    options: argparse.Namespace, output: Output, variant: str | None, folder: PopulationFolder, settings: Settings
) -> None:
    """Train a population in its folder, and report its lineage and, if the settings request it, its members."""
    from algorithm.api import run_training
    from algorithm.parts.env_folder import find_folder
    from algorithm.population.runner import train_population

    env, name = options.env, folder.path.name
    if options.seconds:
        raise UserError("--seconds is for single runs: population_config.timeout limits the time of an interval")
    if options.logger_in_file:
        output.log_to_file(folder.path / LOG_FILE)
    output.log(f"training {folder.size} members {name}-1 ... {name}-{folder.size} of the population {folder.path}")
    output.save_note = f" Checkpoints saved; resume with: {get_command(env, '-n', name, '--resume')}"
    try:
        train = partial(run_training, env, variant=variant, callbacks=[])
        train_population(folder, settings, train, output.log)
    finally:
        if folder.has_learned():
            _report_population(output, env, folder)
            if settings.report.report and (write_report := find_run_tool("report")):
                for member in folder.members:
                    if member.has_learned():
                        write_report(member.path, output.log)
        else:
            output.close_log_file()
            output.save_note = " Nothing was saved: no member had a checkpoint yet."
            if source := find_folder(env):
                output.removed_folders |= {str(member.path): str(source) for member in folder.members}


def _report_population(output: Output, env: str, folder: PopulationFolder) -> None:
    """Print a table with the last row of each member (its ancestors, settings, return), and how to play the best."""
    from algorithm.population.members import find_best

    rows, lineage = folder.read_lineage(output.log), folder.lineage_path
    best = find_best(rows)
    output.result = {"population": folder.path.as_posix(), "best": None, "lineage": lineage.as_posix()}
    if best is None:
        return
    run = folder.members[best.member - 1]
    output.result["best"] = {"run": run.given_path.as_posix(), "return": best.mean_return, "settings": best.settings}
    shown = []
    for member, row in sorted({row.member: row for row in rows}.items()):
        parents = [str(each.parent) for each in rows if each.member == member and each.parent != member]
        values = {path: f"{value:.4g}" if isinstance(value, float) else value for path, value in row.settings.items()}
        settings = ", ".join(f"{path}={value}" for path, value in values.items())
        mean = "failed" if row.mean_return is None else format_number(row.mean_return)
        shown.append((str(member), " ".join(parents), settings, str(row.interval), f"{row.env_steps:,}", mean))
    output.print_table(("member", "copies of", "settings"), ("interval", "env steps", "return"), shown)
    output.log(f"lineage:   {lineage}")
    output.log(f"play best: {get_command(env, '-n', run.path.name, '--run')}")


class PlayCommand(Command):
    """`--run`: play the episodes of an evaluation with a trained run."""

    heavy_module = "algorithm.runs.playing"

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that does not exist, and for settings that cannot be used with it."""
        from algorithm.demonstrations import check_new_recording
        from algorithm.runs.run_requests import check_existing_run

        if options.record:
            check_new_recording(options.record, "--record ")
        check_existing_run(make_request(options), output.log)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Play, and print the evaluation of each role."""
        from algorithm.cli.display import display_playing
        from algorithm.config.sections import count_evaluation_episodes
        from algorithm.parts.lock import check_links
        from algorithm.parts.make_env import Environments
        from algorithm.runs.playing import play
        from algorithm.runs.results import make_evaluation_record
        from algorithm.runs.run_requests import find_run
        from algorithm.training.evaluator import get_mode_name

        folder, settings = find_run(make_request(options), output.log)
        if options.logger_in_file or options.video:
            check_links(folder.given_path)
        if options.logger_in_file:
            output.log_to_file(folder.path / LOG_FILE)
        n_envs = options.agents or (1 if options.render else Environments(settings, folder).count_evaluation_envs())
        episodes = options.max_iter * n_envs if options.max_iter else count_evaluation_episodes(settings.goal)
        greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
        played = (settings, folder, episodes, greedy, options.render, options.ckpt, n_envs, output.log)
        with display_playing(output.console, output.log) as show:
            evaluation = play(*played, video=options.video, show=show, record=options.record)
        for role, result in evaluation.items():
            std, length = format_number(result.std), format_number(result.length)
            output.log(f"{folder}{role_suffix(role)}: {result}; std {std}, mean length {length}")
        output.result = {
            "run": folder.given_path.as_posix(),
            "mode": get_mode_name(greedy),
            "evaluation": make_evaluation_record(evaluation),
        }
