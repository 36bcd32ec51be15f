"""Mutated inputs: damaged settings, command lines and networks, each drawn from its own seed."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from algorithm.cli import main
from algorithm.cli.parser import make_parser
from algorithm.config.yaml_layers import format_yaml, iterate_leaves, load_defaults, merge, nest

DOCUMENTED = (0, 1, 2, 3, 4)  # exit statuses
FOLDER = Path("envs/mine/task")
BASE = {
    "default": {
        "base_config": {"env_type": "PROBE", "env_name": "choice", "n_envs": 1, "max_step": 8, "log_every": 8},
        "goal": {"return": 1.0, "step_budget": 8},
        "nn_config": {"units": 4},
        "replay_config": {"capacity": 200},
        "acer_config": {"rollout_length": 4, "sequence_length": 4, "batch_size": 2, "learning_starts": 4},
        "explorer": {"action_noise": [0.0, 0.1]},
    },
    "sac": {"base_config": {"algorithm": "SAC"}, "sac_config": {"batch_size": 2, "learning_starts": 2}},
    "reactor": {
        "base_config": {"algorithm": "REACTOR"},
        "reactor_config": {"n_atoms": 5, "batch_size": 2, "learning_starts": 2},
    },
    "wide": {"inherit": "sac", "nn_config": {"units": 8}},
}
PATHS = [path for path in iterate_leaves(load_defaults()) if path != "base_config.env_type"]
NN = """from algorithm.networks import *


def blueprint(units=4, memory=None):
    return Blueprint(encoders={'*': Vector()}, body=Mlp(units, 4), memory=memory)
"""
# Replacements of a value. Sizes are small or impossible, since a large possible size would take long.
VALUES = [None, True, False, "", "x", "off", "null", "{time}", "é" * 200, -1, 0, 1, 2, 0.5, -0.0, 1e-320, 1e300]
VALUES += [2**31, 2**63, -(2**63), 2**64 + 1, 10**200, float("inf"), float("nan"), [], {}, [1], ["x"], [[]], {"a": 1}]
VALUES += [{1: 2}, {None: None}, {"a": {"b": [1, {}]}}, [0.5, 2**70], {"curriculum": []}, [None], {"x": None}]
# Words on a command line and in YAML.
TEXTS = """1:30 010 0x1F 1e400 1_000 .inf -.inf .nan yes off null ~ = << *a [ { ] ' " é # @x %x `
1,000 - -- . .. / a.b %s {} {0} 2026-01-01""".split()
TEXTS += ["", "\0", "\x85", "\t", "\ud800", "- 1", "? x", "| x", "a: b: c", "[1, 2", "{1: 2}", "{[1]: 2}", "9" * 30]
TEXTS += ["{a: 1, a: 2}", "&a [*a]", "!!int x", "!!python/object:os.system x", "[" * 3000, "{a: " * 3000, "9" * 5000]
OPTION_WORDS = "- -- -c -n -p --set --config --name x .. default sac wide { a/b".split()
# Replacements of an argument in nn.py.
ARGUMENTS = """0;-1;2.5;2**31;2**63;10**200;None;'x';[];();{};object();True;Mlp;Mlp(4);Vector();Gru(0);Gru(4)
Lstm(2**63);Attention(4, heads=0);Attention(4, window=1);NoisyMlp();NatureCnn();FrameStack(4, Vector());FrameStack(0, 3)
lambda x: x;lambda *x: None;print;int;Mlp(0);Mlp();Mlp(4, activation='x');Vector(scale=0);Vector(normalize=3)
1/0;nothing;(yield)"""
PARTS = ["body=Mlp({})", "body={}", "encoders={}", "encoders={{'*': {}}}", "memory={}", "policy={}", "critic={}"]


@dataclass
class Input:
    """The files of an environment's folder and a command line."""

    config: str | bytes = field(default_factory=lambda: format_yaml(BASE))
    nn: str | None = NN
    arguments: list[str] = field(default_factory=list)


def draw_input(seed: int) -> tuple[str, Input]:
    """Return the kind and the mutated input of a seed."""
    rng = random.Random(seed)
    mutate = rng.choice(KINDS)
    return mutate.__name__.removeprefix("_mutate_"), mutate(rng)


def run(given: Input) -> tuple[int, str]:
    """Return the exit status and the standard error of an input, in the working directory."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    config = given.config if isinstance(given.config, bytes) else given.config.encode("utf-8", "surrogatepass")
    (FOLDER / "config.yaml").write_bytes(config)
    if given.nn is not None:
        (FOLDER / "nn.py").write_bytes(given.nn.encode("utf-8", "surrogatepass"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numbers that diverge
        # A mutation may remove the limits, so the limits of the command line come last.
        status = main.main(["mine/task", "-n", "a", "--force", *given.arguments, "--max_step", "8"])
    return status, err.getvalue()


def find_fault(status: int, err: str) -> str | None:
    """Return what is not as documented; None if everything is."""
    if "(unexpected" in err or "Traceback" in err:
        return err
    if status not in DOCUMENTED:
        return f"status {status}: {err}"
    lines = [line for line in err.splitlines() if line]
    return None if bool(lines) == bool(status) and len(lines) <= 1 else f"status {status}, {len(lines)} lines: {err}"


def _mutate_value(rng: random.Random) -> Input:
    tree = deepcopy(BASE)
    for _ in range(rng.choice([1, 1, 2])):
        keys = rng.choice(PATHS).split(".")[: rng.choice([1, 2, 2, 2, 3])]
        variant = rng.choice(list(tree))
        tree[variant] = merge(tree[variant], nest(".".join(keys), rng.choice(VALUES)))
    return Input(format_yaml(tree), arguments=_choose_variant(rng))


def _mutate_shape(rng: random.Random) -> Input:
    tree = deepcopy(BASE)
    what = rng.randrange(5)
    if what == 0:
        tree[rng.choice(list(tree))] = rng.choice(VALUES)
    elif what == 1:
        tree[rng.choice(["sac", "wide", "default"])]["inherit"] = rng.choice([*VALUES, "wide", "sac", "default"])
    elif what == 2:
        tree[rng.choice([1, None, True, "x", "", 2.5])] = tree.pop(rng.choice(list(tree)))
    elif what == 3:
        section = tree["default"][rng.choice(list(tree["default"]))]
        section[rng.choice([1, None, True, "x", "", 2.5, "a.b"])] = rng.choice(VALUES)
    else:
        section = rng.choice(["explorer", "auxiliaries", "reset_config", "ma_config", "nn_config"])
        name = rng.choice(["action_noise", "x", "", 1, None, "agent", "Action_Noise", "é"])
        tree["default"][section] = {name: rng.choice(VALUES)}
    return Input(format_yaml(tree), arguments=_choose_variant(rng))


def _mutate_text(rng: random.Random) -> Input:
    text = _scramble(rng, format_yaml(BASE))
    if rng.random() < 0.1:
        return Input(text.encode("utf-8", "surrogatepass")[: rng.randrange(400)] + rng.randbytes(rng.randrange(8)))
    return Input(text, arguments=_choose_variant(rng))


def _mutate_assignments(rng: random.Random) -> Input:
    given = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = rng.choice(PATHS) if rng.random() < 0.8 else rng.choice([*TEXTS, "ma_config.agent.acer_config", "goal"])
        text = format_yaml(rng.choice(VALUES)).removesuffix("...\n").strip()
        given.append(f"{path}={rng.choice([rng.choice(TEXTS), text])}" if rng.random() < 0.95 else path)
    return Input(arguments=[*_choose_variant(rng), "--set" if rng.random() < 0.8 else "--env_args", *given])


def _mutate_flags(rng: random.Random) -> Input:
    skipped = ("editor", "render", "debug", "json", "help", "version")
    options = [action for action in make_parser()._actions if action.option_strings and action.dest not in skipped]
    given = []
    for option in rng.sample(options, rng.choice([1, 1, 2])):
        given.append(option.option_strings[-1])
        if option.nargs != 0 or rng.random() < 0.1:
            given.append(rng.choice([*TEXTS, *OPTION_WORDS, "1", "0", "-1", "1e3", "9" * 25, "a.b=c", "env_type=x"]))
    return Input(arguments=given)


def _mutate_network(rng: random.Random) -> Input:
    argument = rng.choice(ARGUMENTS.replace("\n", ";").split(";"))
    text = f"from algorithm.networks import *\n\nblueprint = Blueprint({rng.choice(PARTS).format(argument)})\n"
    if rng.random() < 0.3:
        text = text.replace("blueprint = ", "def blueprint(units=4):\n    return ")
    if rng.random() < 0.2:
        text = f"from algorithm.networks import *\n\nblueprint = {argument}\n"
    tree = deepcopy(BASE)
    tree["default"]["nn_config"] = {"units": rng.choice(VALUES)} if "def " in text else {}
    tree["wide"]["nn_config"] = {}
    return Input(format_yaml(tree), text, _choose_variant(rng))


def _mutate_text_of_network(rng: random.Random) -> Input:
    return Input(nn=_scramble(rng, NN), arguments=_choose_variant(rng))


KINDS = [_mutate_value, _mutate_value, _mutate_shape, _mutate_text, _mutate_assignments, _mutate_assignments]
KINDS += [_mutate_flags, _mutate_network, _mutate_text_of_network]


def _choose_variant(rng: random.Random) -> list[str]:
    return rng.choice([[], ["-c", "sac"], ["-c", "wide"]])


def _scramble(rng: random.Random, text: str) -> str:
    """Return a text with some characters or lines removed, doubled, exchanged, or added."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice([1, 1, 2, 8]))
        lines = text.splitlines(keepends=True)
        first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
        added = rng.choice([*TEXTS, *":-{}[]()'\"#&*!|>%@,\t\n ="])
        choice = rng.randrange(5)
        if choice < 3:
            text = text[:at] + ["", added + text[at:end], text[at:end] * 2][choice] + text[end:]
        elif choice == 3:
            lines[first], lines[second] = lines[second], lines[first]
            text = "".join(lines)
        else:
            del lines[first]
            text = "".join(lines)
    return text
