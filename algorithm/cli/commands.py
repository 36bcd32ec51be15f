"""The contract of a command of the command line, and the options that select a run and override its settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from algorithm.cli.output import Output

if TYPE_CHECKING:  # a command line is parsed without these imports, which take a moment
    from algorithm.config.yaml_layers import Layer
    from algorithm.runs.run_requests import RunRequest


class Command:
    """A command: the first word of a command line. Its module is imported for every help page, so it imports little."""

    help: str  # what it does, in one line
    needs_folder = False  # whether its environment must have a folder
    heavy_module: str | None = None  # module that takes seconds to import, because of torch: imported after `check`

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments and options of the command to its parser."""

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for options that cannot be used, before anything else is done."""

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Execute the command."""
        raise NotImplementedError


def parse_integer(text: str) -> int:
    """Return an integer, read as integers in settings are: 1e6 and 1_000 are valid, 010 and 1:30 are not.

    Raises:
        ArgumentTypeError: The text is not such an integer.
    """
    from algorithm.config.yaml_layers import parse_yaml  # yaml is not needed for --help

    try:
        number = parse_yaml(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}: {error}") from error
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


def parse_count(text: str) -> int:
    """Return an integer above 0. Raises ArgumentTypeError."""
    number = parse_integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it is {number}; it must be at least 1")
    return number


FLAG: Mapping[str, Any] = {"action": "store_true"}
COUNT: Mapping[str, Any] = {"type": parse_count, "metavar": "N"}
_INTEGER: Mapping[str, Any] = {"type": parse_integer, "metavar": "N"}
_PAIRS: Mapping[str, Any] = {"nargs": "+", "action": "extend", "metavar": "KEY=VALUE"}

SHORT_FORMS = {"name": "-n", "config": "-c", "port": "-p"}
# Options of several commands; `--` and dashes are added to their names.
SHARED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "name": {"metavar": "NAME", "help": "name of the run; the latest run by default"},
    "config": {"metavar": "VARIANT", "help": "variant in the folder's config.yaml"},
    "force": {**FLAG, "help": "replace an existing run of this name"},
    "set": {**_PAIRS, "help": "override settings, for example acer_config.gamma=0.995"},
    "env_args": {**_PAIRS, "help": "keyword arguments of the environment"},
    "agents": {**_INTEGER, "help": "number of environments that run in parallel"},
    "max_step": {**_INTEGER, "help": "number of steps, over all environments, after which training ends"},
    "max_iter": {
        **COUNT,
        "help": "number of iterations after which training ends (in each, every agent ends an episode at least); with "
        "--run, episodes per environment",
    },
    "seed": {**_INTEGER, "help": "seed of all random numbers"},
    "device": {"metavar": "DEVICE", "help": "cpu, cuda (or gpu), cuda:1, mps, or auto"},
    "nn": {"metavar": "FILE", "help": "file with the network, in the environment folder"},
    "use_env_nn": {**FLAG, "help": "use the network's file in the environment folder instead of the run's copy"},
    "ckpt": {"metavar": "CHECKPOINT", "help": "checkpoint to load: its number of steps, or its folder"},
    "editor": {
        "action": "store_const",
        "const": "editor",
        "help": "use the editor of the engine (Unity, or Godot: godot_args) instead of a built player",
    },
    "port": {**_INTEGER, "help": "port of the editor, or of the first player"},
    "population": {
        **_INTEGER,
        "help": "train N members NAME-1 ... NAME-N at the same time, the worst of which copy the best",
    },
    "ray": {
        "metavar": "ADDRESS",
        "help": "train with actors on Ray, or train the members of a population there: local (processes of this "
        "machine), auto (the cluster of this machine), or HOST:PORT of a cluster",
    },
}
ENGINE_SECTION = "unity_args"  # which another engine of the environment replaces by its own
# The setting that an option sets, by its name.
SETTINGS: Mapping[str, str] = {
    "name": "base_config.name",  # of a new run
    "population": "population_config.size",
    "env_args": "base_config.env_args",
    "agents": "base_config.n_envs",
    "max_step": "base_config.max_step",
    "max_iter": "base_config.max_iter",
    "seed": "base_config.seed",
    "device": "base_config.device",
    "ray": "cluster_config.address",
    "nn": "base_config.nn",
    "editor": f"base_config.{ENGINE_SECTION}.build_path",
    "port": f"base_config.{ENGINE_SECTION}.base_port",
}
IMPLIED: Mapping[str, Mapping[str, Any]] = {"ray": {"base_config.runtime": "CLUSTER", "cluster_config.host": "ray"}}


def spell(name: str) -> str:
    """Return the long form of an option, as the help page shows it."""
    return f"--{name.replace('_', '-')}"


def add_environment(parser: argparse.ArgumentParser, help: str, required: bool = True) -> None:
    """Add the argument ENV to the parser of a command."""
    parser.add_argument("env", metavar="ENV", nargs=None if required else "?", help=help)


def add_options(parser: Any, *names: str, **meanings: str) -> None:
    """Add shared options to a parser or a group of it: `names` with their usual meaning, others with their own."""
    for name in (*names, *meanings):
        forms = [*([SHORT_FORMS[name]] if name in SHORT_FORMS else []), spell(name)]
        own = {"help": meanings[name]} if name in meanings else {}
        parser.add_argument(*forms, **{**SHARED_OPTIONS[name], **own})


def add_setting_options(parser: Any, *names: str) -> None:
    """Add the options of every command that reads the settings of new runs, and further ones of `names`."""
    add_options(parser, "set", "env_args", "agents", "max_step", "max_iter", "seed", "device", *names)


def collect_layers(options: argparse.Namespace) -> list[Layer]:
    """Return the settings of a command line, with the options that set them; flags override --set."""
    from algorithm.config.loader import read_assignments
    from algorithm.config.yaml_layers import make_tree

    given = {name: value for name, value in vars(options).items() if name in SETTINGS and value is not None}
    pairs = given.pop("env_args", None) or []
    if getattr(options, "run", True) or options.resume:  # of all other commands, the name selects a run or a study
        given.pop("name", None)
    layers = [
        ("--set", read_assignments(getattr(options, "set", None) or [])),
        ("--env-args", read_assignments(pairs, "--env-args", "base_config.env_args.")),
    ]
    for name, value in given.items():
        setting = SETTINGS[name]
        if ENGINE_SECTION in setting:
            setting = setting.replace(ENGINE_SECTION, _find_engine_section(options, layers))
        layers.append((spell(name), make_tree({setting: value, **IMPLIED.get(name, {})})))
    return layers


def _find_engine_section(options: argparse.Namespace, layers: Sequence[Layer]) -> str:
    """Return the section of the engine of a run, for settings below its options; without an engine, one that fails."""
    from algorithm.config.registry import find_class
    from algorithm.errors import UserError
    from algorithm.runs.run_requests import RunRequest, read_env_type, read_env_type_of_run

    given = vars(options)
    is_new = not (given.get("run") or given.get("resume"))
    request = RunRequest(
        env=options.env,
        name=None if is_new else given.get("name"),
        variant=given.get("config") or "default",
        layers=layers,
    )
    try:
        env_type = read_env_type(request) if is_new else read_env_type_of_run(request)
        section = find_class("env_type", env_type).section if isinstance(env_type, str) else None
    except UserError:  # which is reported when the settings are read
        section = None
    return section or ENGINE_SECTION


def make_request(options: argparse.Namespace) -> RunRequest:
    """Return the run that the options request."""
    from algorithm.runs.run_requests import RunRequest

    given = vars(options)
    return RunRequest(
        env=options.env,
        name=given.get("name"),
        variant=given.get("config") or "default",
        layers=collect_layers(options),
        repeat=given.get("repeat"),
        replace=given.get("force", False),
        use_env_nn=given.get("use_env_nn", False),
    )
