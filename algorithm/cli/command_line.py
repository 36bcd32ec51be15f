"""The command line: parse it, and check that its options fit together."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import Any

from algorithm.cli.options import (
    DOCTOR,
    FLAGS,
    IMPORT,
    INIT,
    LIST,
    MAX_REPEATS,
    MODES,
    OPTIONS,
    TRAIN,
)
from algorithm.config.renamed_settings import find_renamed_flag
from algorithm.errors import UserError
from algorithm.runs.env_folder import find_folder, list_environments, locate_environment, make_unknown_error

EXAMPLES = """\
python main.py gym/cartpole -n "test_{time}"        train
python main.py gym/cartpole --run --render         watch the latest run
python main.py gym/cartpole -n NAME --resume       go on with a run
python main.py unity/3dball -n NAME --export       write it as ONNX for Unity
python main.py --list                              all runs with their results
python main.py --init gym/mountain_car             a folder for an environment of Gymnasium
python main.py --doctor                            what works on this machine, and what to do where it does not
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(f"{message}; python main.py --help lists every option")


def make_parser() -> argparse.ArgumentParser:
    """What argparse makes of the table."""
    parser = _Parser(
        prog="main.py",
        usage="python main.py ENV [options]",
        description="Train an agent in an environment's folder, or play with a trained one. Dashes may be underscores.",
        epilog=f"examples:\n{EXAMPLES}\nevery setting: docs/configuration.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "env", nargs="?", metavar="ENV", help="environment folder: its name below envs/ (gym/cartpole), or its path"
    )
    for option in OPTIONS:
        spellings = [option.short] * bool(option.short) + [option.spelling]
        parser.add_argument(*spellings, help=option.help.replace("%", "%%"), **option.parser_args)
    return parser


def make_start_page() -> str:
    """What is shown where nothing is asked for."""
    return (
        "Samara trains actor-critic agents with experience replay in the environments of envs/.\n\n"
        f"{EXAMPLES}\nenvironments: {', '.join(list_environments())}\n\n"
        "python main.py --help lists every option, docs/configuration.md every setting."
    )


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The options, with `mode` among them. Raises UserError, in one line, for what cannot be."""
    options, rest = make_parser().parse_known_args([_use_underscores(text) for text in arguments])
    words = [text for text in rest if not text.startswith("-")]
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(_describe_unknown(unknown[0].partition("=")[0]))
    if options.env is None and words:  # argparse stops looking for it at the first option
        options.env = words.pop(0)
    if words:
        raise UserError(f"{words[0]!r} is one word too many; put names and values with spaces in quotes")
    if options.env is not None:
        options.env = locate_environment(options.env)
    options.mode = _find_mode(options)
    _check_options(options)
    if options.mode == TRAIN and find_folder(options.env) is None:
        raise make_unknown_error(options.env)
    return options


def collect_flag_layers(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return a layer of settings for each flag that sets one, but for --env_args, whose values are YAML."""
    layers = []
    for option in OPTIONS:
        value = getattr(options, option.name)
        # The name of an existing run selects it, and sets nothing.
        selects_run = option.name == "name" and options.mode != TRAIN
        if option.setting and option.name != "env_args" and value is not None and not selects_run:
            tree = value
            for key in reversed(option.setting.split(".")):
                tree = {key: tree}
            layers.append((option.spelling, tree))
    return layers


def _use_underscores(text: str) -> str:
    """A long option with underscores, whatever it was spelled with."""
    if not text.startswith("--"):
        return text
    name, equals, value = text[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _describe_unknown(flag: str) -> str:
    if instead := find_renamed_flag(flag.lstrip("-"), FLAGS):
        return f"{flag} is no option here; {instead}"
    similar = get_close_matches(flag.lstrip("-"), [option.name for option in OPTIONS], 1)
    return (
        f"{flag} is no option; {f'did you mean --{similar[0]}?' if similar else 'python main.py --help lists them all'}"
    )


def _find_mode(options: argparse.Namespace) -> str:
    modes = [mode for mode in MODES if getattr(options, mode.removeprefix("--"))]
    if len(modes) > 1:
        raise UserError(f"{modes[0]} and {modes[1]} exclude each other")
    return modes[0] if modes else TRAIN


def _check_options(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if getattr(options, option.name) not in (None, False) and options.mode not in option.modes:
            raise UserError(f"{option.spelling} goes with {' and '.join(option.modes)}, not with {options.mode}")
    if options.env is None and options.mode not in (LIST, INIT, IMPORT, DOCTOR):
        known = ", ".join(list_environments())
        raise UserError(
            f"name the environment's folder first, for example: python main.py gym/cartpole; there is {known}"
        )
    if options.sample and options.disable_sample:
        raise UserError("--sample and --disable_sample exclude each other")
    if options.env is None and options.mode == DOCTOR:
        _check_no_settings(options)
    if options.env is not None and options.mode == INIT:
        raise UserError(f"--init {options.init} names the folder already; leave out {options.env!r}")
    if options.env is not None and options.mode == IMPORT:
        raise UserError(f"{IMPORT} names folders by the behaviors; leave out {options.env!r}")
    _check_positive(options)


def _check_no_settings(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if (option.setting or option.name in ("config", "set")) and getattr(options, option.name) is not None:
            raise UserError(f"{option.spelling} says something of an environment's folder: name it before --doctor")


def _check_positive(options: argparse.Namespace) -> None:
    for name, maximum in (("repeat", MAX_REPEATS), ("max_iter", None)):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1")
        if value is not None and maximum is not None and value > maximum:
            raise UserError(f"--{name} is {value}; it must be at most {maximum}")
