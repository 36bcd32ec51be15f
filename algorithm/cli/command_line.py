"""The command line: its parser, checks that its options fit together, and the run and settings that they request."""

from __future__ import annotations

import argparse
import textwrap
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from algorithm import __version__
from algorithm.cli.modes import COMPARE, DOCTOR, GALLERY, IMPORT, INIT, LIST, MODE, MODES, TRAIN, TUNE
from algorithm.cli.options import FLAGS, GROUPS, MAX_REPEATS, OPTIONS, OUTPUT
from algorithm.config.renamed_settings import WORDS_ELSEWHERE, find_renamed_flag
from algorithm.errors import UserError
from algorithm.parts.env_folder import (
    advise_folder,
    find_folder,
    is_id,
    list_environments,
    locate_environment,
    make_unknown_error,
)
from algorithm.program import get_command, get_document

if TYPE_CHECKING:  # the parser imports neither pydantic nor torch
    from algorithm.config.yaml_layers import Layer
    from algorithm.runs.run_requests import RunRequest


EXAMPLES = {
    'gym/cartpole -n "test_{time}"': "train",
    "HalfCheetah-v5": "train in any environment of Gymnasium",
    "gym/cartpole --run --render": "watch the latest run",
    "gym/cartpole -n NAME --resume": "continue a run",
    "unity/3dball -n NAME --export": "write a run as ONNX for Unity",
    "--list": "list all runs with their results",
    "--compare runs/gym/cartpole": "compare the runs of an environment",
    "--init gym/taxi": "write a folder for an environment of Gymnasium",
    "--doctor": "check this machine, with advice for each problem",
}
ENV_HELP = "environment folder: its name below envs/ (gym/cartpole), or its path; or an id of Gymnasium (CartPole-v1)"
HELP_COLUMN = 30  # at which the meaning of an option begins
HELP_WIDTH = 110


class _Parser(argparse.ArgumentParser):
    """A parser that raises UserError, and whose help lists the options in groups."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {get_command()} --help lists every option")

    def format_help(self) -> str:
        return make_help_page()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the table of options."""
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"samara {__version__}")
    parser.add_argument("env", nargs="?")
    for option in OPTIONS:
        spellings = [option.short, option.spelling] if option.short else [option.spelling]
        parser.add_argument(*spellings, help=argparse.SUPPRESS, **option.parser_args)
    return parser


def make_help_page() -> str:
    """Return the text of --help."""
    lines = [
        f"usage: {get_command()} ENV [options]",
        "",
        "Train an agent in an environment, or play with a trained one. Dashes may be underscores.",
        "",
        *_format_option("ENV", ENV_HELP),
    ]
    for group in GROUPS:
        lines += ["", f"{group}:"]
        if group == MODE:
            lines += _format_option("(none of these)", "train a new run")
        for option in OPTIONS:
            if option.group == group:
                lines += _format_option(option.usage, option.help)
        if group == OUTPUT:
            lines += _format_option("--version", "print the version")
            lines += _format_option("-h, --help", "print this page")
    lines += ["", "examples:", *_format_examples(), "", f"every setting: {get_document('configuration')}", ""]
    return "\n".join(lines)


def _format_option(usage: str, meaning: str) -> list[str]:
    """Return the lines of an option: its forms, and its meaning in a column."""
    indent = " " * HELP_COLUMN
    column = textwrap.wrap(meaning, HELP_WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(usage) + 2 >= HELP_COLUMN:
        return [f"  {usage}", *column]
    return [f"  {usage}".ljust(HELP_COLUMN) + column[0].strip(), *column[1:]]


def _format_examples() -> list[str]:
    width = max(map(len, EXAMPLES))
    return [f"  {get_command()} {arguments:<{width}}  {meaning}" for arguments, meaning in EXAMPLES.items()]


def make_start_page() -> str:
    """Return the text that is shown if the command line is empty."""
    return "\n".join(
        [
            "Samara trains actor-critic agents (ACER, SAC, Reactor, A2C, PPO) in the environments of envs/.",
            "",
            *_format_examples(),
            "",
            f"environments: {', '.join(list_environments())}",
            "",
            f"{get_command()} --help lists every option, {get_document('configuration')} every setting.",
        ]
    )


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options of a command line, with their `mode`.

    Raises:
        UserError: An option is unknown, has a wrong value, or does not fit the others.
    """
    options, rest = make_parser().parse_known_args([_use_underscores(text) for text in arguments])
    words = [text for text in rest if not text.startswith("-")]
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(_describe_unknown(unknown[0].partition("=")[0]))
    for word in (options.env, *words):
        if word in WORDS_ELSEWHERE and find_folder(word) is None:
            raise UserError(f"unexpected argument {word!r}: {WORDS_ELSEWHERE[word]}")
    if options.env is None and words:  # argparse stops looking for it at the first option
        options.env = words.pop(0)
    if words:
        raise UserError(f"unexpected argument {words[0]!r}; put names and values with spaces in quotes")
    if options.env is not None:
        options.env = locate_environment(options.env)
    options.mode = _find_mode(options)
    _check_options(options)
    if options.env is not None:
        _check_environment(options)
    return options


def _check_environment(options: argparse.Namespace) -> None:
    """Raise UserError for an environment without a folder, if the command or an option needs one."""
    if find_folder(options.env) is not None:
        return
    if not is_id(options.env):
        if options.mode in (TRAIN, TUNE):
            raise make_unknown_error(options.env)
        return
    for name in ("tune", "doctor", "config", "nn", "use_env_nn"):
        if getattr(options, name) in (None, False):
            continue
        spelling = "-c" if name == "config" else f"--{name}"
        raise UserError(
            f"{spelling} needs an environment folder, and {options.env} is an id; {advise_folder(options.env)}"
        )


def _use_underscores(text: str) -> str:
    """Return a word of the command line; if it is a long option, with underscores instead of dashes."""
    if not text.startswith("--"):
        return text
    name, equals, value = text[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _describe_unknown(flag: str) -> str:
    if instead := find_renamed_flag(flag.lstrip("-"), FLAGS):
        return f"unknown option {flag}; {instead}"
    similar = get_close_matches(flag.lstrip("-"), [option.name for option in OPTIONS], 1)
    advice = f"did you mean --{similar[0]}?" if similar else f"{get_command()} --help lists every option"
    return f"unknown option {flag}; {advice}"


def _find_mode(options: argparse.Namespace) -> str:
    modes = [mode for mode in MODES if getattr(options, mode.removeprefix("--"))]
    if len(modes) > 1:
        raise UserError(f"{modes[0]} and {modes[1]} cannot be combined")
    return modes[0] if modes else TRAIN


def _check_options(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if getattr(options, option.name) not in (None, False) and options.mode not in option.modes:
            modes = " and ".join(filter(None, (", ".join(option.modes[:-1]), option.modes[-1])))
            raise UserError(f"{option.spelling} goes with {modes}, not with {options.mode}")
    if options.env is None and options.mode not in (LIST, GALLERY, INIT, IMPORT, DOCTOR, COMPARE):
        known = ", ".join(list_environments())
        raise UserError(
            f"name the environment folder first, for example: {get_command()} gym/cartpole; the folders are {known}"
        )
    if options.sample and options.disable_sample:
        raise UserError("--sample and --disable_sample cannot be combined")
    if options.render and options.video:
        raise UserError("--render and --video cannot be combined: environments that are shown return no pictures")
    if options.env is None and options.mode == DOCTOR:
        _check_no_settings(options)
    if options.env is not None and options.mode == INIT:
        raise UserError(f"--init {options.init} is the name of the new folder; leave out {options.env!r}")
    if options.env is not None and options.mode == IMPORT:
        raise UserError(f"{IMPORT} names the new folders after the behaviors; leave out {options.env!r}")
    if options.env is not None and options.mode == COMPARE:
        raise UserError(f"{COMPARE} names the folders of runs after it; leave out {options.env!r}")
    _check_positive(options)


def _check_no_settings(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if (option.setting or option.name in ("config", "set")) and getattr(options, option.name) is not None:
            raise UserError(f"{option.spelling} needs an environment folder: name it before --doctor")


def _check_positive(options: argparse.Namespace) -> None:
    for name, maximum in (("repeat", MAX_REPEATS), ("max_iter", None), ("tune", None), ("seconds", None)):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1")
        if value is not None and maximum is not None and value > maximum:
            raise UserError(f"--{name} is {value}; it must be at most {maximum}")


def collect_flag_layers(options: argparse.Namespace) -> list[Layer]:
    """Return a layer of settings for each flag that sets one, but for --env_args, whose values are YAML."""
    from algorithm.config.yaml_layers import merge, nest

    layers = []
    for option in OPTIONS:
        value = getattr(options, option.name)
        # The name of an existing run selects it, and sets nothing.
        selects_run = option.name == "name" and options.mode != TRAIN
        if option.setting and option.name != "env_args" and value is not None and not selects_run:
            tree = nest(option.setting, value)
            for path, implied in option.implied.items():
                tree = merge(tree, nest(path, implied))
            layers.append((option.spelling, tree))
    return layers


def collect_layers(options: argparse.Namespace) -> list[Layer]:
    """Return the settings of the command line, with the options that set them; flags override --set."""
    from algorithm.config.loader import read_assignments

    return [
        ("--set", read_assignments(options.set or [])),
        ("--env_args", read_assignments(options.env_args or [], "--env_args", "base_config.env_args.")),
        *collect_flag_layers(options),
    ]


def make_request(options: argparse.Namespace) -> RunRequest:
    """Return the run that the options request."""
    from algorithm.runs.run_requests import RunRequest

    return RunRequest(
        env=options.env,
        name=options.name,
        variant=options.config or "default",
        layers=collect_layers(options),
        repeat=options.repeat,
        replace=options.force,
        use_env_nn=options.use_env_nn,
    )
