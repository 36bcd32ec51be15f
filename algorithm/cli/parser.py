"""The parser of the command line: training and playing, the commands, and advice for what it does not know."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from algorithm import __version__
from algorithm.cli.commands import (
    COUNT,
    FLAG,
    SETTINGS,
    Command,
    add_environment,
    add_options,
    add_setting_options,
    parse_count,
    spell,
)
from algorithm.config.unknown_settings import advise_flag, advise_word
from algorithm.errors import UserError
from algorithm.parts.env_folder import (
    advise_folder,
    find_folder,
    find_similar_folders,
    is_id,
    list_environments,
    locate_environment,
    make_unknown_error,
)
from algorithm.program import get_command, get_document

# The commands; a feature can be removed by deleting its package and its line here.
COMMANDS: Mapping[str, str] = {
    "list": "algorithm.tools.reports.commands:ListCommand",
    "report": "algorithm.tools.reports.commands:ReportCommand",
    "compare": "algorithm.tools.reports.commands:CompareCommand",
    "gallery": "algorithm.tools.reports.commands:GalleryCommand",
    "tune": "algorithm.tools.tune.command:TuneCommand",
    "init": "algorithm.tools.init.command:InitCommand",
    "doctor": "algorithm.tools.doctor.command:DoctorCommand",
    "export": "algorithm.tools.export.command:ExportCommand",
    "demonstrations": "algorithm.tools.demonstrations.command:DemonstrationsCommand",
    "record": "algorithm.tools.demonstrations.command:RecordCommand",
    "share": "algorithm.tools.share.command:ShareCommand",
    "import-mlagents": "algorithm.tools.mlagents.command:ImportCommand",
}
# Training and playing, which have no first word.
TRAIN, PLAY = "algorithm.cli.training:TrainCommand", "algorithm.cli.training:PlayCommand"
EXAMPLES = {
    'gym/cartpole -n "test_{time}"': "train",
    "HalfCheetah-v5": "train in any environment of Gymnasium",
    "gym/cartpole --run --render": "watch the latest run",
    "gym/cartpole -n NAME --resume": "continue a run",
    "export unity/3dball -n NAME": "write a run as ONNX for Unity",
    "list": "list all runs with their results",
    "compare runs/gym/cartpole": "compare the runs of an environment",
    "init gym/taxi": "write a folder for an environment of Gymnasium",
    "doctor": "check this machine, with advice for each problem",
}
ENV_HELP = "environment folder: its name below envs/ (gym/cartpole), or its path; or an id of Gymnasium (CartPole-v1)"
IN_QUOTES = "put names and values with spaces in quotes"
MAX_REPEATS = 1000
TRAINING, RESUME, RUN = "training", "--resume", "--run"  # modes of a command line without a command
# The modes with which an option can be combined; all others can be combined with all three.
MODES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("config", "force", "repeat", "jobs", "population"), (TRAINING,)),
    **dict.fromkeys(("seconds", "max_step", "ray"), (TRAINING, RESUME)),
    "use_env_nn": (RESUME, RUN),
    **dict.fromkeys(("ckpt", "record", "video", "render", "disable_sample", "sample"), (RUN,)),
}
FLAGS = {setting: spell(name) for name, setting in SETTINGS.items()}  # by the setting that they set


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError."""

    def __init__(self, *words: str, **texts: Any):
        layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=110)
        prog = " ".join((get_command(), *words))
        super().__init__(prog=prog, allow_abbrev=False, add_help=False, formatter_class=layout, **texts)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; {self.prog} --help lists every option")

    def add_output_options(self) -> Any:
        """Add the options of every command; return their group, the last one."""
        group = self.add_argument_group("output")
        group.add_argument(
            "--json",
            **FLAG,
            help="print the result as one line of JSON on standard output, and all else on standard error",
        )
        group.add_argument("--debug", **FLAG, help="show the traceback of an error")
        group.add_argument("-h", "--help", action="help", help="print this page")
        return group


class MainParser(Parser):
    """The parser of command lines without a command: they train or play. Its help page lists the commands."""

    def format_help(self) -> str:
        """Return the help page, for which every command is imported."""
        commands = [f"  {name:<17} {load_command(path).help}" for name, path in COMMANDS.items()]
        self.epilog = "\n".join(
            (
                f"commands ({get_command()} COMMAND --help lists the options of one):",
                *commands,
                f"\nexamples:\n{_format_examples()}\n\nevery setting: {get_document('configuration')}",
            )
        )
        return super().format_help()


def make_parser() -> Parser:
    """Return the parser of command lines without a command: they train or play."""
    parser = MainParser(
        usage=f"{get_command()} ENV [options]\n       {get_command()} COMMAND [options]",
        description="Train an agent in an environment, or play with a trained one. Dashes may be underscores.",
    )
    add_environment(parser, ENV_HELP, required=False)
    modes = parser.add_argument_group("modes, in addition to training").add_mutually_exclusive_group()
    modes.add_argument(
        RUN,
        **FLAG,
        help="play the episodes of an evaluation with a trained run, greedy or sampled as in its evaluation",
    )
    modes.add_argument(RESUME, **FLAG, help="continue a run")
    group = parser.add_argument_group("training")
    add_options(
        group,
        "config",
        name="name of the run, {time} and <time> are the start time; --run and --resume use the latest run by default",
    )
    add_options(group, "force")
    group.add_argument(
        "--seconds", **COUNT, help="time for which a run is trained at most, without the start of its process"
    )
    group.add_argument(
        "--repeat",
        type=_parse_repeats,
        metavar="N",
        help="train NAME-1 ... NAME-N with consecutive seeds, then print mean and std of the results",
    )
    group.add_argument("--jobs", **COUNT, help="number of runs of --repeat that train at the same time; 1 by default")
    add_options(group, "population")
    add_setting_options(group, "ray", "nn")
    group = parser.add_argument_group("playing (--run)")
    add_options(group, "ckpt", use_env_nn="use the network's file in the environment folder; also with --resume")
    pictures, actions = group.add_mutually_exclusive_group(), group.add_mutually_exclusive_group()
    pictures.add_argument("--render", **FLAG, help="show the environment")
    pictures.add_argument(
        "--video",
        **FLAG,
        help="record the best, the median and the worst episode: mp4 and gif in the folder videos of the run",
    )
    group.add_argument(
        "--record", type=Path, metavar="FILE", help="write the episodes to a new file.npz, as demonstrations"
    )
    actions.add_argument(
        "--disable-sample", **FLAG, help="play greedily (the most probable action) instead of as in evaluation"
    )
    actions.add_argument("--sample", **FLAG, help="play with sampled actions instead of as in evaluation")
    add_options(parser.add_argument_group("Unity and Godot"), "editor", "port")
    group = parser.add_output_options()
    group.add_argument("--logger-in-file", **FLAG, help="also write the output to log.txt in the run folder")
    group.add_argument("--version", action="version", version=f"samara {__version__}", help="print the version")
    return parser


def load_command(path: str) -> Command:
    """Import a command, given as `module:Class`."""
    command: Command = resolve_name(path)()
    return command


def make_command_parser(name: str, command: Command) -> Parser:
    """Return the parser of a command."""
    parser = Parser(name, description=f"{command.help[0].upper()}{command.help[1:]}.")
    command.add_options(parser)
    forms = {"?": "[{}]", "+": "{} ..."}
    arguments = [action for action in parser._actions if not action.option_strings]
    shown = [forms.get(str(action.nargs), "{}").format(action.metavar) for action in arguments]
    parser.usage = " ".join((parser.prog, *shown, "[options]"))
    parser.add_output_options()
    return parser


def _parse_repeats(text: str) -> int:
    if (count := parse_count(text)) > MAX_REPEATS:
        raise argparse.ArgumentTypeError(f"it is {count}; it must be at most {MAX_REPEATS}")
    return count


def _format_examples() -> str:
    width = max(map(len, EXAMPLES))
    return "\n".join(f"  {get_command()} {line:<{width}}  {meaning}" for line, meaning in EXAMPLES.items())


def make_start_page() -> str:
    """Return the text that is shown if the command line is empty."""
    return (
        "Samara trains actor-critic agents (ACER, SAC, Reactor, A2C, PPO, POCA) in the environments of envs/.\n\n"
        f"{_format_examples()}\n\n"
        f"environments: {', '.join(list_environments())}\n\n"
        f"{get_command()} --help lists every option, {get_document('configuration')} every setting."
    )


def parse_arguments(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """Return the command and the options of a command line.

    Raises:
        UserError: An option is unknown, has a wrong value, or does not fit the others.
    """
    words = [_use_dashes(text) for text in arguments]
    name = words.pop(0) if words and words[0] in COMMANDS else None
    command = load_command(COMMANDS[name]) if name else None
    parser = make_command_parser(name, command) if name and command else make_parser()
    options, rest = parser.parse_known_intermixed_args(words)
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(_describe_unknown(unknown[0].partition("=")[0], parser))
    if command is None:
        _check_words([*([options.env] if options.env else []), *rest], words)
        _check_mode(options)
        command = load_command(PLAY if options.run else TRAIN)
    elif rest:
        raise UserError(f"unexpected argument {rest[0]!r}; {IN_QUOTES}")
    if getattr(options, "env", None) is not None:
        options.env = locate_environment(options.env)
        needs_folder = command.needs_folder if name else not (options.run or options.resume)
        if is_id(options.env):
            _check_id(options, f"{name} needs" if name and needs_folder else None)
        elif needs_folder and find_folder(options.env) is None:
            raise make_unknown_error(options.env)
    return command, options


def _use_dashes(text: str) -> str:
    """Return a word of the command line; if it is a long option, with dashes instead of underscores."""
    name, equals, value = text.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if text.startswith("--") else text


def _check_words(arguments: Sequence[str], words: Sequence[str]) -> None:
    """Raise UserError unless the arguments are one environment, with advice for words of other programs and typos."""
    for word in arguments:
        if find_folder(word) is None and word in COMMANDS:
            others = list(words)
            others.remove(word)
            raise UserError(f"the command {word} comes first: {get_command(word, *others)}")
        if find_folder(word) is None and (advice := advise_word(word)):
            raise UserError(f"unexpected argument {word!r}; {advice}")
    if not arguments:
        raise UserError(
            f"name the environment folder first, for example: {get_command()} gym/cartpole; the folders are "
            f"{', '.join(list_environments())}"
        )
    first, *others = arguments
    similar = get_close_matches(first, COMMANDS, 1) if "/" not in first and find_folder(first) is None else []
    if similar and not find_similar_folders(first):
        raise UserError(f"no environment folder and no command {first!r}; did you mean: {get_command()} {similar[0]}?")
    if others:
        raise UserError(f"unexpected argument {others[0]!r}; {IN_QUOTES}")


def _check_mode(options: argparse.Namespace) -> None:
    """Raise UserError for an option that the mode of the command line has no use for."""
    mode = RUN if options.run else RESUME if options.resume else TRAINING
    for name, modes in MODES.items():
        if getattr(options, name) not in (None, False) and mode not in modes:
            raise UserError(f"{spell(name)} goes with {' and '.join(modes)}, not with {mode}")


def _check_id(options: argparse.Namespace, need: str | None) -> None:
    """Raise UserError for an id of Gymnasium, if the command or an option needs an environment folder."""
    needs = [need, *(f"{spell(name)} needs" for name in ("config", "nn", "use_env_nn") if getattr(options, name, None))]
    for text in filter(None, needs):
        raise UserError(f"{text} an environment folder, and {options.env} is an id; {advise_folder(options.env)}")


def _describe_unknown(flag: str, parser: Parser) -> str:
    """Return the error for an unknown option, with what to use instead; commands were flags in version 0.1."""
    name = flag.lstrip("-")
    if name in COMMANDS:
        return f"{flag} is a command now: {make_command_parser(name, load_command(COMMANDS[name])).usage}"
    known = [text for text in parser._option_string_actions if text.startswith("--")]
    similar = get_close_matches(flag, known, 1)
    advice = f"did you mean {similar[0]}?" if similar else f"{parser.prog} --help lists every option"
    return f"unknown option {flag}; {advise_flag(flag, FLAGS) or advice}"
