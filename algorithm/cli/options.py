"""The options of the command line: one table, from which the parser, the help page and the reference are made."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_EPISODES = 20  # that --run plays
MAX_REPEATS = 1000  # runs of one command

TRAIN, RESUME, RUN, EXPORT = "training", "--resume", "--run", "--export"
LIST, INIT, IMPORT, DOCTOR = "--list", "--init", "--import_mlagents", "--doctor"
MODES = (RESUME, RUN, EXPORT, LIST, INIT, IMPORT, DOCTOR)
TRAINING_MODES, PLAYING_MODES, ALL_MODES = (TRAIN, RESUME), (RUN,), (TRAIN, *MODES)
SETTINGS_MODES = (TRAIN, RESUME, RUN, INIT, DOCTOR)  # what needs settings


@dataclass(frozen=True)
class Option:
    """One option: its spellings, what it does, the commands that accept it, and the setting that it sets."""

    spelling: str
    help: str
    modes: tuple[str, ...]
    setting: str | None = None
    short: str | None = None
    parser_args: Mapping[str, Any] = field(default_factory=dict)  # further arguments for argparse

    @property
    def name(self) -> str:
        """Return the name of its attribute in the parsed options."""
        return self.spelling.removeprefix("--")


def _parse_integer(text: str) -> int:
    """Read an integer as settings are read: 1e6 and 1_000 are some, 010 and 1:30 are not.

    Raises ArgumentTypeError.
    """
    from algorithm.config.yaml_text import load  # yaml is not needed for --help

    try:
        number = load(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}: {error}") from error
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


_INTEGER_ARGS: dict[str, Any] = {"type": _parse_integer, "metavar": "N"}
_FLAG_ARGS: dict[str, Any] = {"action": "store_true"}
_PAIR_ARGS: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "KEY=VALUE"}

OPTIONS = (
    Option(
        "--config",
        "variant in the folder's config.yaml",
        (TRAIN, DOCTOR),
        short="-c",
        parser_args={"metavar": "VARIANT"},
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
        f"play {DEFAULT_EPISODES} episodes with a trained run, greedy or sampled as in its evaluation",
        PLAYING_MODES,
        parser_args=_FLAG_ARGS,
    ),
    Option("--resume", "continue a run", (RESUME,), parser_args=_FLAG_ARGS),
    Option(
        "--export",
        "write a trained run as ONNX files, one for each role, which Unity takes",
        (EXPORT,),
        parser_args=_FLAG_ARGS,
    ),
    Option("--barracuda", "in opset 9, for packages 1.x and 2.x of ML-Agents", (EXPORT,), parser_args=_FLAG_ARGS),
    Option(
        "--force",
        "replace an existing run of this name, or config.yaml and nn.py of existing folders",
        (TRAIN, INIT, IMPORT),
        parser_args=_FLAG_ARGS,
    ),
    Option("--list", "show all runs, or those of one environment, with their results", (LIST,), parser_args=_FLAG_ARGS),
    Option(
        "--init",
        "write a commented folder envs/GROUP/NAME for Gymnasium's NAME, or for any --set base_config.env_name=ID",
        (INIT,),
        parser_args={"metavar": "GROUP/NAME"},
    ),
    Option(
        IMPORT,
        "write a folder envs/unity/NAME for each behavior of a trainer configuration of Unity's ML-Agents",
        (IMPORT,),
        parser_args={"metavar": "CONFIG.yaml"},
    ),
    Option(
        "--doctor",
        "check this machine, or what the environment's folder needs to train, with advice for each problem",
        (DOCTOR,),
        parser_args=_FLAG_ARGS,
    ),
    Option(
        "--repeat",
        "train NAME-1 ... NAME-N with successive seeds; then print mean and std of the results",
        (TRAIN,),
        parser_args=_INTEGER_ARGS,
    ),
    Option("--set", "override settings, for example acer_config.gamma=0.995", SETTINGS_MODES, parser_args=_PAIR_ARGS),
    Option(
        "--env_args",
        "keyword arguments of the environment",
        SETTINGS_MODES,
        "base_config.env_args",
        parser_args=_PAIR_ARGS,
    ),
    Option("--agents", "number of environments", SETTINGS_MODES, "base_config.n_envs", parser_args=_INTEGER_ARGS),
    Option(
        "--max_step",
        "env steps after which training ends",
        (*TRAINING_MODES, INIT, DOCTOR),
        "base_config.max_step",
        parser_args=_INTEGER_ARGS,
    ),
    Option(
        "--max_iter",
        "iterations after which training ends (each agent has ended an episode). With --run: episodes per environment",
        SETTINGS_MODES,
        "base_config.max_iter",
        parser_args=_INTEGER_ARGS,
    ),
    Option("--seed", "seed of everything", SETTINGS_MODES, "base_config.seed", parser_args=_INTEGER_ARGS),
    Option("--device", "cpu, cuda (or gpu), cuda:1, mps, or auto", SETTINGS_MODES, "base_config.device"),
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
        parser_args=_FLAG_ARGS,
    ),
    Option("--ckpt", "checkpoint to play with, or to export: its env steps, or a checkpoint's folder", (RUN, EXPORT)),
    Option("--render", "show the environment", PLAYING_MODES, parser_args=_FLAG_ARGS),
    Option(
        "--disable_sample",
        "play greedily (the most probable action) instead of as in evaluation",
        PLAYING_MODES,
        parser_args=_FLAG_ARGS,
    ),
    Option("--sample", "play with sampled actions instead of as in evaluation", PLAYING_MODES, parser_args=_FLAG_ARGS),
    Option(
        "--logger_in_file",
        "write what is printed to log.txt in the run folder too",
        (TRAIN, RESUME, RUN),
        parser_args=_FLAG_ARGS,
    ),
    Option(
        "--json",
        "one line of JSON with the result on standard output; what is for people goes to standard error",
        ALL_MODES,
        parser_args=_FLAG_ARGS,
    ),
    Option("--debug", "show where an error comes from", ALL_MODES, parser_args=_FLAG_ARGS),
    Option(
        "--editor",
        "in the Unity editor instead of a built player",
        (TRAIN, RESUME, RUN, DOCTOR),
        "base_config.unity_args.build_path",
        parser_args={"action": "store_const", "const": "editor"},
    ),
    Option(
        "--port",
        "port of the Unity editor, or of the first player",
        (TRAIN, RESUME, RUN, DOCTOR),
        "base_config.unity_args.base_port",
        "-p",
        _INTEGER_ARGS,
    ),
)
FLAGS = {option.setting: option.spelling for option in OPTIONS if option.setting}
