"""Any content of files and command lines, each mutated with its own seed, ends with a status and at most one line."""

from __future__ import annotations

import random
import shutil
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.cli.parser import make_parser
from algorithm.config.yaml_layers import format_yaml, iterate_settings, load_defaults, merge, nest

DOCUMENTED = (0, 1, 2, 3, 4)  # exit statuses
FOLDER = Path("envs/mine/task")
INPUTS = 300
AT_ONCE = 30
QUICK = 60  # the inputs before this one are not among the slow tests
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
PATHS = [path for path in dict(iterate_settings(load_defaults())) if path != "base_config.env_type"]
NN = """from algorithm.networks import *


def blueprint(units=4, memory=None):
    return Blueprint(encoders={'*': Vector()}, body=Mlp(units, 4), memory=memory)
"""
# Replacements of a value. Sizes are small or impossible, since a large possible size would take long.
VALUES = [None, True, False, "", "x", "off", "null", "{time}", "é" * 200, -1, 0, 1, 2, 0.5, -0.0, 1e-320, 1e300]
VALUES += [2**31, 2**63, -(2**63), 2**64 + 1, 10**200, float("inf"), float("nan"), [], {}, [1], ["x"], [[]], {"a": 1}]
VALUES += [{1: 2}, {None: None}, {"a": {"b": [1, {}]}}, [0.5, 2**70], {"curriculum": []}, [None], {"x": None}]
NAMES = [1, None, True, "x", "", 2.5]  # of variants and settings
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

    config: bytes = field(default_factory=lambda: encode(format_yaml(BASE)))
    nn: bytes = NN.encode()
    arguments: list[str] = field(default_factory=list)


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def run(given: Input, capsys) -> tuple[int, str]:
    """Return the exit status and the standard error of an input, in the working directory."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "config.yaml").write_bytes(given.config)
    (FOLDER / "nn.py").write_bytes(given.nn)
    # A mutation may remove the limits, so the limits of the command line come last.
    status = main.main(["mine/task", "-n", "a", "--force", *given.arguments, "--max_step", "8"])
    return status, capsys.readouterr().err


def mutate_value(rng: random.Random) -> Input:
    tree = deepcopy(BASE)
    for _ in range(rng.choice([1, 1, 2])):
        keys = rng.choice(PATHS).split(".")[: rng.choice([1, 2, 2, 2, 3])]
        variant = rng.choice(list(tree))
        tree[variant] = merge(tree[variant], nest(".".join(keys), rng.choice(VALUES)))
    return Input(encode(format_yaml(tree)))


def mutate_shape(rng: random.Random) -> Input:
    tree, what = deepcopy(BASE), rng.randrange(5)
    if what == 0:
        tree[rng.choice(list(tree))] = rng.choice(VALUES)
    elif what == 1:
        tree[rng.choice(["sac", "wide", "default"])]["inherit"] = rng.choice([*VALUES, "wide", "sac", "default"])
    elif what == 2:
        tree[rng.choice(NAMES)] = tree.pop(rng.choice(list(tree)))
    elif what == 3:
        tree["default"][rng.choice(list(tree["default"]))][rng.choice([*NAMES, "a.b"])] = rng.choice(VALUES)
    else:
        section = rng.choice(["explorer", "auxiliaries", "reset_config", "ma_config", "nn_config"])
        name = rng.choice(["action_noise", "x", "", 1, None, "agent", "Action_Noise", "é"])
        tree["default"][section] = {name: rng.choice(VALUES)}
    return Input(encode(format_yaml(tree)))


def mutate_text(rng: random.Random) -> Input:
    config = encode(scramble(rng, format_yaml(BASE)))
    return Input(config[: rng.randrange(400)] + rng.randbytes(rng.randrange(8)) if rng.random() < 0.1 else config)


def mutate_assignments(rng: random.Random) -> Input:
    given = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = rng.choice(PATHS) if rng.random() < 0.8 else rng.choice([*TEXTS, "ma_config.agent.acer_config", "goal"])
        text = format_yaml(rng.choice(VALUES)).removesuffix("...\n").strip()
        given.append(f"{path}={rng.choice([rng.choice(TEXTS), text])}" if rng.random() < 0.95 else path)
    return Input(arguments=["--set" if rng.random() < 0.8 else "--env_args", *given])


def mutate_flags(rng: random.Random) -> Input:
    skipped = ("editor", "render", "debug", "json", "help", "version")
    options = [action for action in make_parser()._actions if action.option_strings and action.dest not in skipped]
    given = []
    for option in rng.sample(options, rng.choice([1, 1, 2])):
        given.append(option.option_strings[-1])
        if option.nargs != 0 or rng.random() < 0.1:
            given.append(rng.choice([*TEXTS, *OPTION_WORDS, "1", "0", "-1", "1e3", "9" * 25, "a.b=c", "env_type=x"]))
    return Input(arguments=given)


def mutate_network(rng: random.Random) -> Input:
    if rng.random() < 0.3:
        return Input(nn=encode(scramble(rng, NN)))
    argument = rng.choice(ARGUMENTS.replace("\n", ";").split(";"))
    value = rng.choice([f"Blueprint({rng.choice(PARTS).format(argument)})"] * 4 + [argument])
    start = rng.choice(["blueprint = "] * 2 + ["def blueprint(units=4):\n    return "])
    tree = deepcopy(BASE)
    tree["default"]["nn_config"] = {"units": rng.choice(VALUES)} if "def " in start else {}
    tree["wide"]["nn_config"] = {}
    return Input(encode(format_yaml(tree)), f"from algorithm.networks import *\n\n{start}{value}\n".encode())


KINDS = [mutate_value, mutate_value, mutate_shape, mutate_text, mutate_assignments, mutate_assignments]
KINDS += [mutate_flags, mutate_network, mutate_network]


def scramble(rng: random.Random, text: str) -> str:
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
            continue
        if choice == 3:
            lines[first], lines[second] = lines[second], lines[first]
        else:
            del lines[first]
        text = "".join(lines)
    return text


@pytest.fixture(autouse=True)
def _without_bytecode_and_curves(monkeypatch):
    """Disable bytecode, which is stale for files of equal size written within a second, and the slow curves."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.filterwarnings("ignore")  # about numbers that diverge
@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.slow] * (first >= QUICK)) for first in range(0, INPUTS, AT_ONCE)]
)
def test_every_mutated_input_ends_as_documented(first, capsys):
    faults = {}
    for seed in range(first, first + AT_ONCE):
        rng = random.Random(seed)
        mutate = rng.choice(KINDS)
        given = mutate(rng)
        given.arguments = rng.choice([[], ["-c", "sac"], ["-c", "wide"]]) + given.arguments
        status, err = run(given, capsys)
        lines = [line for line in err.splitlines() if line]
        is_documented = status in DOCUMENTED and bool(lines) == bool(status) and len(lines) <= 1
        if not is_documented or "(unexpected" in err or "Traceback" in err:
            faults[seed, mutate.__name__] = status, err
    assert faults == {}


@pytest.mark.parametrize("variant", ["default", "sac", "reactor", "wide"])
def test_the_input_without_mutations_trains(variant, capsys):
    assert run(Input(arguments=["-c", variant]), capsys) == (0, "")
