"""The command line: one table of options, from which the parser, the help page and the reference are made."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from algorithm.experiment.environments import environments, find_folder, locate_environment, unknown_environment
from algorithm.experiment.errors import UserError
from algorithm.experiment.former import former_flag

EPISODES = 20  # that --run plays
REPEATS = 1000  # runs of one command

TRAIN, RESUME, RUN, EXPORT = "training", "--resume", "--run", "--export"
LIST, INIT, IMPORT, DOCTOR = "--list", "--init", "--import_mlagents", "--doctor"
MODES = (RESUME, RUN, EXPORT, LIST, INIT, IMPORT, DOCTOR)
LEARN, PLAY, EVERY = (TRAIN, RESUME), (RUN,), (TRAIN, *MODES)
MAKE = (TRAIN, RESUME, RUN, INIT, DOCTOR)  # what needs settings


@dataclass(frozen=True)
class Option:
    """One option: its spellings, what it does, with what it goes, and the setting that it is short for."""

    spelling: str
    help: str
    goes_with: tuple[str, ...]
    setting: str | None = None
    short: str | None = None
    parse: Mapping[str, Any] = field(default_factory=dict)  # what argparse is told besides

    @property
    def name(self) -> str:
        """Its attribute of the parsed options."""
        return self.spelling.removeprefix("--")


def _integer(text: str) -> int:
    """Read an integer as settings are read: 1e6 and 1_000 are some, 010 and 1:30 are not.

    Raises ArgumentTypeError.
    """
    from algorithm.experiment.yaml_text import load  # yaml is not needed for --help

    try:
        number = load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}: {error}") from error
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


_WHOLE: dict[str, Any] = {"type": _integer, "metavar": "N"}
_ON: dict[str, Any] = {"action": "store_true"}
_PAIRS: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "KEY=VALUE"}

OPTIONS = (
    Option(
        "--config", "variant in the folder's config.yaml", (TRAIN, DOCTOR), short="-c", parse={"metavar": "VARIANT"}
    ),
    Option(
        "--name",
        "name of the run; {time} and <time> become the start time. Else --run, --resume, --export take the latest",
        (TRAIN, RESUME, RUN, EXPORT),
        "base_config.name",
        "-n",
    ),
    Option(
        "--run",
        f"play {EPISODES} episodes with a trained run, as its evaluation did: greedy or sampled",
        PLAY,
        parse=_ON,
    ),
    Option("--resume", "go on with a run", (RESUME,), parse=_ON),
    Option("--export", "write a trained run as ONNX files, one for each role, which Unity takes", (EXPORT,), parse=_ON),
    Option("--barracuda", "in opset 9, for packages 1.x and 2.x of ML-Agents", (EXPORT,), parse=_ON),
    Option(
        "--force",
        "replace a run that has this name already, or config.yaml and nn.py of folders that are there",
        (TRAIN, INIT, IMPORT),
        parse=_ON,
    ),
    Option("--list", "show all runs, or those of one environment, with their results", (LIST,), parse=_ON),
    Option(
        "--init",
        "write a commented folder envs/GROUP/NAME for Gymnasium's NAME, or for any --set base_config.env_name=ID",
        (INIT,),
        parse={"metavar": "GROUP/NAME"},
    ),
    Option(
        IMPORT,
        "write a folder envs/unity/NAME for each behavior of a trainer configuration of Unity's ML-Agents",
        (IMPORT,),
        parse={"metavar": "CONFIG.yaml"},
    ),
    Option(
        "--doctor",
        "say what works on this machine, or what keeps the environment's folder from training, and what to do",
        (DOCTOR,),
        parse=_ON,
    ),
    Option(
        "--repeat",
        "train NAME-1 ... NAME-N with successive seeds; then their mean and spread",
        (TRAIN,),
        parse=_WHOLE,
    ),
    Option("--set", "override settings, for example acer_config.gamma=0.995", MAKE, parse=_PAIRS),
    Option("--env_args", "keyword arguments of the environment", MAKE, "base_config.env_args", parse=_PAIRS),
    Option("--agents", "copies of the environment", MAKE, "base_config.n_envs", parse=_WHOLE),
    Option(
        "--max_step",
        "env steps after which training ends",
        (*LEARN, INIT, DOCTOR),
        "base_config.max_step",
        parse=_WHOLE,
    ),
    Option(
        "--max_iter",
        "iterations after which training ends: every lane has ended an episode. With --run: episodes per lane",
        MAKE,
        "base_config.max_iter",
        parse=_WHOLE,
    ),
    Option("--seed", "seed of everything", MAKE, "base_config.seed", parse=_WHOLE),
    Option("--device", "cpu, cuda (or gpu), cuda:1, mps, or auto", MAKE, "base_config.device"),
    Option(
        "--nn",
        "file with the network in the environment's folder",
        (TRAIN, RESUME, RUN, EXPORT, DOCTOR),
        "base_config.nn",
    ),
    Option(
        "--use_env_nn",
        "take the network's file from the environment's folder, not the run's copy",
        (RESUME, RUN, EXPORT),
        parse=_ON,
    ),
    Option("--ckpt", "checkpoint to play with, or to export: its env steps, or a checkpoint's folder", (RUN, EXPORT)),
    Option("--render", "show the environment", PLAY, parse=_ON),
    Option("--disable_sample", "play greedily: the most probable action, whatever evaluation does", PLAY, parse=_ON),
    Option("--sample", "play with sampled actions, whatever evaluation does", PLAY, parse=_ON),
    Option(
        "--logger_in_file", "write what is printed to log.txt in the run folder too", (TRAIN, RESUME, RUN), parse=_ON
    ),
    Option(
        "--json",
        "one line of JSON with the result on standard output; what is for people goes to standard error",
        EVERY,
        parse=_ON,
    ),
    Option("--debug", "show where an error comes from", EVERY, parse=_ON),
    Option(
        "--editor",
        "in the Unity editor instead of a built player",
        (TRAIN, RESUME, RUN, DOCTOR),
        "base_config.unity_args.build_path",
        parse={"action": "store_const", "const": "editor"},
    ),
    Option(
        "--port",
        "port of the Unity editor, or of the first player",
        (TRAIN, RESUME, RUN, DOCTOR),
        "base_config.unity_args.base_port",
        "-p",
        _WHOLE,
    ),
)
FLAGS = {option.setting: option.spelling for option in OPTIONS if option.setting}

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


def parser() -> argparse.ArgumentParser:
    """What argparse makes of the table."""
    made = _Parser(
        prog="main.py",
        usage="python main.py ENV [options]",
        description="Train an agent in an environment's folder, or play with a trained one. Dashes may be underscores.",
        epilog=f"examples:\n{EXAMPLES}\nevery setting: docs/configuration.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "env", nargs="?", metavar="ENV", help="environment folder: its name below envs/ (gym/cartpole), or its path"
    )
    for option in OPTIONS:
        spellings = [option.short] * bool(option.short) + [option.spelling]
        made.add_argument(*spellings, help=option.help.replace("%", "%%"), **option.parse)
    return made


def page() -> str:
    """What is shown where nothing is asked for."""
    return (
        "Samara trains actor-critic agents with experience replay in the environments of envs/.\n\n"
        f"{EXAMPLES}\nenvironments: {', '.join(environments())}\n\n"
        "python main.py --help lists every option, docs/configuration.md every setting."
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, with `mode` among them. Raises UserError, in one line, for what cannot be."""
    options, rest = parser().parse_known_args([_underscored(text) for text in arguments])
    words = [text for text in rest if not text.startswith("-")]
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(_unknown(unknown[0].partition("=")[0]))
    if options.env is None and words:  # argparse stops looking for it at the first option
        options.env = words.pop(0)
    if words:
        raise UserError(f"{words[0]!r} is one word too many; names and values with blanks go in quotes")
    if options.env is not None:
        options.env = locate_environment(options.env)
    options.mode = _mode(options)
    _check(options)
    if options.mode == TRAIN and find_folder(options.env) is None:
        raise unknown_environment(options.env)
    return options


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """What the flags that are short for settings set, as a tree; --set and --env_args are read where YAML is."""
    tree: dict[str, Any] = {}
    for option in OPTIONS:
        value = getattr(options, option.name)
        # The name of a run that is there sets nothing.
        names_run = option.name == "name" and options.mode != TRAIN
        if option.setting and option.name != "env_args" and value is not None and not names_run:
            *sections, key = option.setting.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
    return tree


def _underscored(text: str) -> str:
    """A long option with underscores, whatever it was spelled with."""
    if not text.startswith("--"):
        return text
    name, equals, value = text[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _unknown(flag: str) -> str:
    if instead := former_flag(flag.lstrip("-"), FLAGS):
        return f"{flag} is no option here; {instead}"
    near = get_close_matches(flag.lstrip("-"), [option.name for option in OPTIONS], 1)
    return f"{flag} is no option; {f'did you mean --{near[0]}?' if near else 'python main.py --help lists them all'}"


def _mode(options: argparse.Namespace) -> str:
    asked = [mode for mode in MODES if getattr(options, mode.removeprefix("--"))]
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} exclude each other")
    return asked[0] if asked else TRAIN


def _check(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if getattr(options, option.name) not in (None, False) and options.mode not in option.goes_with:
            raise UserError(f"{option.spelling} goes with {' and '.join(option.goes_with)}, not with {options.mode}")
    if options.env is None and options.mode not in (LIST, INIT, IMPORT, DOCTOR):
        known = ", ".join(environments())
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
    for name, most in (("repeat", REPEATS), ("max_iter", None)):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1")
        if value is not None and most is not None and value > most:
            raise UserError(f"--{name} is {value}; it must be at most {most}")
