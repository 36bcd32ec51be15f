"""The command line: commands, options and their spellings, advice for what is unknown, and the options in the docs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm import __version__
from algorithm.cli import main
from algorithm.cli.commands import SETTINGS, collect_layers, make_request
from algorithm.cli.parser import (
    COMMANDS,
    FLAGS,
    load_command,
    make_command_parser,
    make_parser,
    make_start_page,
    parse_arguments,
)
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import iterate_settings, load_defaults, merge
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS, is_file_name
from algorithm.parts.run_folder import RunFolder
from algorithm.runs import playing, run_requests
from tests.task_folder import write_task

ROOT = Path(__file__).resolve().parents[2]
# Lines as users write them, with their command and some of their options.
USES = {
    "gym/cartpole": ("Train", {"env": "gym/cartpole", "run": False, "resume": False, "name": None}),
    "gym/cartpole -n a -c fast --force --seconds 60": (
        "Train",
        {"name": "a", "config": "fast", "force": True, "seconds": 60},
    ),
    "-n a --seed 3 gym/cartpole --json": ("Train", {"env": "gym/cartpole", "seed": 3, "json": True}),
    "gym/cartpole --population 8 --max-step=9 --debug": ("Train", {"population": 8, "max_step": 9, "debug": True}),
    "gym/cartpole --set a.b=1 c.d=2 --set e.f=3": ("Train", {"set": ["a.b=1", "c.d=2", "e.f=3"]}),
    "gym/cartpole --resume --max_step 1e6 --ray auto": ("Train", {"resume": True, "max_step": 10**6, "ray": "auto"}),
    "gym/cartpole --run --video --sample": ("Play", {"run": True, "video": True, "sample": True}),
    "list": ("List", {"env": None}),
    "list gym/cartpole --json": ("List", {"env": "gym/cartpole", "json": True}),
    "report gym/cartpole -n a": ("Report", {"env": "gym/cartpole", "name": "a"}),
    "compare runs/a runs/b --metric eval/return": ("Compare", {"runs": ["runs/a", "runs/b"], "metric": "eval/return"}),
    "compare runs/a --metric eval/return runs/b": ("Compare", {"runs": ["runs/a", "runs/b"]}),
    "gallery page": ("Gallery", {"folder": Path("page"), "env": None, "seconds": 300, "force": False}),
    "gallery page gym --seconds 60 --force": ("Gallery", {"env": "gym", "seconds": 60, "force": True}),
    "tune gym/cartpole": ("Tune", {"env": "gym/cartpole", "trials": 20, "save_as": None}),
    "tune -c sac gym/pendulum --trials 5 --save_as mine -n a": (
        "Tune",
        {"env": "gym/pendulum", "trials": 5, "save_as": "mine", "name": "a", "config": "sac"},
    ),
    "init gym/acrobot --force --set a.b=1": ("Init", {"folder": "gym/acrobot", "force": True, "set": ["a.b=1"]}),
    "doctor": ("Doctor", {"env": None}),
    "doctor unity/3dball --editor -p 5005": ("Doctor", {"env": "unity/3dball", "editor": "editor", "port": 5005}),
    "export unity/3dball -n a --ckpt 500 --format barracuda --use-env-nn": (
        "Export",
        {"env": "unity/3dball", "name": "a", "ckpt": "500", "format": "barracuda", "use_env_nn": True},
    ),
    "import-mlagents walker.yaml --force": ("Import", {"file": Path("walker.yaml"), "force": True}),
}


def make_parsers():
    """Return the parser of each command by its name; the parser of training and playing has the name ''."""
    return {
        "": make_parser(),
        **{name: make_command_parser(name, load_command(path)) for name, path in COMMANDS.items()},
    }


def list_spellings() -> set[str]:
    return {text for parser in make_parsers().values() for text in parser._option_string_actions}


@pytest.mark.parametrize("line", USES)
def test_a_line_has_its_command_and_options_in_common_spellings(line):
    name, expected = USES[line]
    words = line.split()
    command, options = parse_arguments(words)
    assert type(command).__name__ == f"{name}Command"
    assert {key: getattr(options, key) for key in expected} == expected
    dashed = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    underscored = [f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word for word in words]
    assert parse_arguments(dashed)[1] == parse_arguments(underscored)[1] == options


def test_a_folder_with_the_name_of_a_command_is_reached_by_its_path():
    write_task("default: {}\n", "list")
    assert type(parse_arguments(["list"])[0]).__name__ == "ListCommand"
    command, options = parse_arguments(["./envs/list", "-n", "a"])
    assert type(command).__name__ == "TrainCommand" and options.env == "list"


NOW = " is a command now: python main.py"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gym/cartpole --run-id a", "unknown option --run-id; use --name"),
        ("--env CartPole-v1", "unknown option --env; not needed: the environment comes first, for example gym/cartp"),
        ("gym/cartpole --nonsens", "unknown option --nonsens; "),
        ("train gym/cartpole", "unexpected argument 'train'; not needed: an environment alone is trained"),
        ("learner mine/task", "unexpected argument 'learner'; use runtime: CLUSTER or --ray"),
        ("CartPole-v1 -c sac", "--config needs an environment folder, and CartPole-v1 is an id; did you mean gym/cart"),
        ("tune CartPole-v1 --trials 3", "tune needs an environment folder"),
        ("doctor CartPole-v1", "doctor needs an environment folder"),
        ("CartPole-v1 --nn other.py", "--nn needs an environment folder"),
        ("CartPole-v1 --run --use-env-nn", "--use-env-nn needs an environment folder"),
        ("play gym/cartpole", "unexpected argument 'play'; use --run, which plays with a trained run"),
        ("gym/cartpole list", "the command list comes first: python main.py list gym/cartpole"),
        ("--json list", "the command list comes first: python main.py list --json"),
        ("tuen gym/cartpole", "no environment folder and no command 'tuen'; did you mean: python main.py tune?"),
        ("lst", "no environment folder and no command 'lst'; did you mean: python main.py list?"),
        ("lights", "no environment folder 'lights' with a config.yaml under ./envs; did you mean masked/lights?"),
        ("list --seed 1", "unknown option --seed; python main.py list --help lists every option"),
        ("export gym/cartpole --formt plain", "unknown option --formt; did you mean --format?"),
        ("tune", "the following arguments are required: ENV; python main.py tune --help lists every option"),
        ("list gym/cartpole more", "unexpected argument 'more'"),
        ("--list", f"--list{NOW} list [ENV] [options]\n"),
        ("gym/cartpole -n NAME --report", f"--report{NOW} report ENV [options]\n"),
        ("--compare runs/a runs/b --metric x", f"--compare{NOW} compare RUN_FOLDER ... [options]\n"),
        ("gym --gallery docs/gallery --seconds 9", f"--gallery{NOW} gallery FOLDER [ENV] [options]\n"),
        ("gym/pendulum -c sac --tune 30 --save-as fast", f"--tune{NOW} tune ENV [options]\n"),
        ("--init=gym/taxi", f"--init{NOW} init GROUP/NAME [options]\n"),
        ("--doctor", f"--doctor{NOW} doctor [ENV] [options]\n"),
        ("unity/3dball -n 'my run' --export --format plain", f"--export{NOW} export ENV [options]\n"),
        ("--import_mlagents walker.yaml --force", f"--import-mlagents{NOW} import-mlagents CONFIG.yaml [options]\n"),
    ],
)
def test_options_of_other_programs_and_those_of_folders_are_errors_with_advice(words, message):
    with pytest.raises(UserError) as error:
        parse_arguments(shlex.split(words))
    assert f"{error.value}\n".startswith(message)


def documented(page: str) -> set[str]:
    """Return the options that a page mentions: in commands with main.py, and as separate code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    ours = [line.split("main.py")[1].split("#")[0] for line in text.splitlines() if "main.py" in line]
    alone = re.findall(r"`(--?[a-z][\w-]*)", text)
    found = {option for line in ours for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", line)}
    return found | set(alone)


@pytest.mark.parametrize("page", ["README.md", "docs/runs.md", "docs/options.md"])
def test_documented_options_exist(page):
    found = documented(page)
    assert "--run" in found and found <= list_spellings() | {"--max_step"}


def test_file_names_are_those_that_every_system_accepts():
    assert all(map(is_file_name, ["a b", "test_2026", "ä", "x" * 100, "1", "null"]))
    assert not any(
        map(is_file_name, ["", ".", "..", ".a", "a.", "a ", "a/b", "a\n", "a*", "nul", "Com1.txt", "x" * 101])
    )


def run_code(code: str, place: Path) -> subprocess.CompletedProcess:
    """Run a program in a folder that has runs of gym/cartpole and of CartPole-v1."""
    for environment in ("gym/cartpole", "CartPole-v1"):
        run = place / "runs" / environment / "a"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("base_config: {env_name: CartPole-v1}")
    program = [sys.executable, "-c", f"import sys\nfrom algorithm.cli import main\n{code}"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(program, capture_output=True, text=True, cwd=place, env=variables, timeout=60)
    assert finished.returncode == 0, finished.stderr
    return finished


def test_wrong_arguments_and_the_first_page_load_nothing_heavy(tmp_path):
    code = (
        "assert main.main([]) == 0 and main.main(['gym/cartpole', '--nonsense']) == 2\n"
        "assert not {'torch', 'numpy', 'gymnasium', 'pydantic', 'rich'} & set(sys.modules)"
    )
    shown = run_code(code, tmp_path).stdout
    assert shown.strip() == make_start_page() and "gym/cartpole" in shown


ERRORS_BEFORE_TORCH = {
    "gym/cartpole --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "gym/cartpole --max-step 0": "base_config.max_step is 0",
    "gym/cartpole --set base_config.log_every=often": "base_config.log_every is 'often'",
    "gym/cartpole --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "gym/cartpole --set auxiliaries.rnd.gamma=2": "auxiliaries.rnd.gamma is 2.0; it must be from 0 to 1",
    "gym/cartpole --set replay_config.alpha=0.5": "replay_config.alpha is for sampler prioritized",
    "gym/cartpole --set sac_config.gamma=0.5": "sac_config.gamma is for algorithm SAC",
    "gym/cartpole --resume --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "tune gym/cartpole --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "CartPole-v1 --set sac_config.gamma=much": "sac_config.gamma is 'much'",
    "gym/cartpole -c unheard": "no variant 'unheard'",
    "gym/cartpole -n a": "run runs/gym/cartpole/a exists already",
    "gym/cartpole -n b --resume": "there is no run 'b'",
    "gym/cartpole --resume --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "gym/cartpole -n b --run": "there is no run 'b'",
    "export gym/cartpole -n b": "there is no run 'b'",
    "tune gym/cartpole --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "CartPole-v1 --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "CartPole-v1 --set base_config.env_name=Acrobot-v1": "base_config.env_name is Acrobot-v1, but CartPole-v1",
    "CartPole-v1 -n a": "run runs/CartPole-v1/a exists already",
    "CartPole-v1 -n b --resume": "there is no run 'b'",
    "Unheard-v0": "Environment `Unheard` doesn't exist. If importing a module registers it, name the module",
    "gym/cartpole-v1": "did you mean gym/cartpole?",
}


def test_errors_that_need_no_torch_are_found_before_torch_is_imported(tmp_path):
    code = (
        f"for words in {list(ERRORS_BEFORE_TORCH)}:\n"
        "    assert main.main(words.split()) == 2, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    finished = run_code(code, tmp_path)
    assert finished.stdout == ""
    for line, part in zip(finished.stderr.splitlines(), ERRORS_BEFORE_TORCH.values(), strict=True):
        assert part in line


def test_something_is_printed_before_torch_is_imported(tmp_path):
    code = (
        "import builtins\n"
        "whole = builtins.__import__\n"
        "def loaded(name, *rest):\n"
        "    if name.partition('.')[0] in ('torch', 'gymnasium', 'rich'):\n"
        "        raise OSError('too early')\n"
        "    return whole(name, *rest)\n"
        "builtins.__import__ = loaded\n"
        "for line in ('{0}', '{0} --resume', '{0} --run', 'export {0}'):\n"
        "    assert main.main(line.format('gym/cartpole').split()) == 1\n"
    )
    finished = run_code(code, tmp_path)
    assert finished.stdout.splitlines() == ["loading PyTorch for gym/cartpole ..."] * 4
    assert finished.stderr.splitlines() == ["OSError: too early"] * 4


def test_flags_name_settings_that_exist():
    assert set(FLAGS) == set(SETTINGS.values()) <= set(dict(iterate_settings(load_defaults())))


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "training")
def test_help_lists_every_option_once(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*words, "--help"])
    page = capsys.readouterr().out
    parser = make_parsers()["".join(words)]
    assert ended.value.code == 0 and page.startswith(f"usage: {' '.join(['python main.py', *words])}")
    listed = re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[\w-]+)", page, re.MULTILINE)
    assert sorted(listed) == sorted(text for text in parser._option_string_actions if text.startswith("--"))
    assert not any("_" in name for name in listed)
    commands = re.findall(r"^  ([\w-]+)  +\w.*", page.partition("\ncommands")[2].partition("\nexamples")[0], re.M)
    assert commands == ([] if words else list(COMMANDS))


def test_version_prints_the_version_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"samara {__version__}\n"


def test_ray_selects_the_runtime_and_the_cluster():
    *_, layer = collect_layers(parse_arguments(["gym/cartpole", "--ray", "10.0.0.1:6379"])[1])
    expected = {"base_config": {"runtime": "CLUSTER"}, "cluster_config": {"address": "10.0.0.1:6379", "host": "ray"}}
    assert layer == ("--ray", expected)


# The flags that users of the seeds know, and what each of them sets or selects.
SET_BY_FLAGS = {
    "-n a": {"name": "a"},
    "--name a": {"name": "a"},
    "--agents 4": {"n_envs": 4},
    "--max_iter 7": {"max_iter": 7},
    "--device gpu": {"device": "gpu"},
    "--nn other.py": {"nn": "other.py"},
    "--env_args limit=3 names=[a,b]": {"env_args": {"limit": 3, "names": ["a", "b"]}},
    "-p 5010": {"unity_args": {"base_port": 5010}},
    "--port 5010": {"unity_args": {"base_port": 5010}},
    "--editor": {"unity_args": {"build_path": "editor"}},
}
PLAYED = {
    "": {},
    "--render": {"render": True, "n_envs": 1},
    "--render --agents 2": {"render": True, "n_envs": 2},
    "--disable_sample": {"greedy": True},
    "--ckpt 500": {"ckpt": "500"},
    "--max_iter 2": {"episodes": 40},
    "--max_iter 2 --agents 5": {"episodes": 10, "n_envs": 5},
}
ARGUMENTS = ("settings", "folder", "episodes", "greedy", "render", "ckpt", "n_envs", "log")  # of `play`


def read(words: str):
    """Return the options and the request of a command line, and the settings of its flags."""
    _, options = parse_arguments(["gym/cartpole", *words.split()])
    request = make_request(options)
    return options, request, merge({}, *(layer for _, layer in request.layers))


@pytest.mark.parametrize("words", SET_BY_FLAGS)
def test_a_flag_sets_its_settings(words):
    assert read(words)[2] == {"base_config": SET_BY_FLAGS[words]}


def test_editor_and_port_are_those_of_the_engine_of_the_folder():
    types = {"default": "GYM", "scene": "GODOT", "five": "5"}
    write_task("".join(f"{name}: {{base_config: {{env_type: {each}}}}}\n" for name, each in types.items()))
    run = RUNS / "mine" / "task" / "old"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("base_config: {env_type: GODOT}\n")
    given = {"-c scene": "godot_args", "--set base_config.env_type=GODOT": "godot_args", "-n old --run": "godot_args"}
    given |= dict.fromkeys(["", "-c unknown", "-c five", "-n old", "-n unknown --run"], "unity_args")
    for words, section in given.items():
        _, options = parse_arguments(["mine/task", *words.split(), "--editor", "-p", "5010"])
        tree = merge({}, *(layer for source, layer in make_request(options).layers if source in ("--editor", "--port")))
        assert tree == {"base_config": {section: {"build_path": "editor", "base_port": 5010}}}


@pytest.mark.parametrize("mode", ["--run", "--resume"])
def test_n_selects_an_existing_run_and_use_env_nn_the_network_of_its_folder(mode):
    _, request, tree = read(f"{mode} -n a --use_env_nn --nn other.py")
    assert (request.name, request.use_env_nn, tree) == ("a", True, {"base_config": {"nn": "other.py"}})
    assert not read(mode)[1].use_env_nn and read(mode)[1].name is None


def test_logger_in_file_applies_to_training_and_playing():
    assert all(read(f"--logger_in_file {mode}")[0].logger_in_file for mode in ("", "--run", "--resume"))
    assert not read("")[0].logger_in_file


@pytest.mark.parametrize("words", PLAYED)
def test_a_flag_changes_how_a_run_is_played(words, monkeypatch):
    played = []
    write_task("default: {}\n")
    Path("runs/mine/task/a").mkdir(parents=True)
    Path("runs/mine/task/a/config.yaml").write_text("base_config: {env_type: PROBE, env_name: truncation}\n")
    base = {"env_type": "PROBE", "env_name": "truncation", "evaluate_greedy": False}
    settings = resolve([("test", {"base_config": base, "goal": {"return": 10, "evaluation_episodes": 30}})])
    folder = RunFolder(Path("runs/mine/task/a"))
    monkeypatch.setattr(run_requests, "find_run", lambda request, log: (folder, settings))
    monkeypatch.setattr(
        playing, "play", lambda *args, **_: played.append(dict(zip(ARGUMENTS, args, strict=True))) or {}
    )
    assert main.main(["mine/task", "--run", *words.split()]) == 0
    expected = {"episodes": 30, "greedy": False, "render": False, "ckpt": None, "n_envs": 20, **PLAYED[words]}
    assert {name: played[0][name] for name in expected} == expected
