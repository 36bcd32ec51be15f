"""The options: spellings, the settings that they set, and the options in the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm import __version__
from algorithm.cli.command_line import collect_flag_layers, make_help_page, make_start_page, parse_arguments
from algorithm.cli.modes import TRAIN
from algorithm.cli.options import FLAGS, GROUPS, OPTIONS
from algorithm.config import renamed_settings as former
from algorithm.config.loader import load_defaults, merge, resolve
from algorithm.errors import UserError
from algorithm.parts.env_folder import is_file_name

ROOT = Path(__file__).resolve().parents[2]
SPELLINGS = {option.spelling for option in OPTIONS} | {"--help", "--version"}
# Options as users write them, with their values.
USES = {
    "--config": ("-c fast", {"config": "fast"}),
    "--name": ("-n a", {"name": "a"}),
    "--run": ("--run", {"run": True, "mode": "--run"}),
    "--resume": ("--resume", {"resume": True, "mode": "--resume"}),
    "--export": ("--export", {"export": True, "mode": "--export"}),
    "--report": ("--report", {"report": True, "mode": "--report"}),
    "--compare": ("--compare runs/a runs/b --compare runs/c", {"compare": ["runs/a", "runs/b", "runs/c"], "env": None}),
    "--gallery": ("--gallery page", {"gallery": "page", "mode": "--gallery"}),
    "--seconds": ("--gallery page --seconds 60", {"seconds": 60, "mode": "--gallery"}),
    "--metric": ("--compare runs --metric eval/return", {"metric": "eval/return", "mode": "--compare"}),
    "--barracuda": ("--export --barracuda", {"barracuda": True}),
    "--force": ("--force", {"force": True, "mode": TRAIN}),
    "--list": ("--list", {"list": True, "mode": "--list"}),
    "--init": ("--init gym/acrobot", {"init": "gym/acrobot", "env": None}),
    "--import_mlagents": ("--import-mlagents walker.yaml", {"import_mlagents": "walker.yaml", "env": None}),
    "--repeat": ("--repeat 3", {"repeat": 3}),
    "--population": ("--population 8", {"population": 8}),
    "--set": ("--set a.b=1 c.d=2 --set e.f=3", {"set": ["a.b=1", "c.d=2", "e.f=3"]}),
    "--env_args": ("--env-args limit=3", {"env_args": ["limit=3"]}),
    "--tune": ("--tune 5", {"tune": 5, "mode": "--tune"}),
    "--save_as": ("--tune --save-as mine", {"save_as": "mine", "tune": 20}),
    "--doctor": ("--doctor", {"doctor": True, "mode": "--doctor"}),
    "--agents": ("--agents=4", {"agents": 4}),
    "--max_step": ("--max-step 9", {"max_step": 9}),
    "--max_iter": ("--run --max-iter 9", {"max_iter": 9}),
    "--seed": ("--seed 9", {"seed": 9}),
    "--device": ("--device gpu", {"device": "gpu"}),
    "--ray": ("--ray auto", {"ray": "auto"}),
    "--nn": ("--nn other.py", {"nn": "other.py"}),
    "--use_env_nn": ("--run --use-env-nn", {"use_env_nn": True}),
    "--ckpt": ("--run --ckpt 500", {"ckpt": "500"}),
    "--render": ("--run --render", {"render": True}),
    "--video": ("--run --video", {"video": True}),
    "--disable_sample": ("--run --disable-sample", {"disable_sample": True}),
    "--sample": ("--run --sample", {"sample": True}),
    "--logger_in_file": ("--logger-in-file", {"logger_in_file": True}),
    "--json": ("--json", {"json": True}),
    "--debug": ("--debug", {"debug": True}),
    "--port": ("-p 5005", {"port": 5005}),
    "--editor": ("--editor", {"editor": "editor"}),
}
WITHOUT_FOLDER = ("--init", "--import_mlagents", "--compare", "--metric")  # commands that name no environment folder


def test_every_option_is_parsed_below():
    assert set(USES) == SPELLINGS - {"--help", "--version"}


@pytest.mark.parametrize("option", USES)
def test_options_are_read_in_common_spellings(option):
    text, expected = USES[option]
    words = text.split() if option in WITHOUT_FOLDER else ["gym/cartpole", *text.split()]
    options = vars(parse_arguments(words))
    assert {name: options[name] for name in expected} == expected
    dashed = [f"--{word[2:].replace('_', '-')}" if word.startswith("--") else word for word in words]
    underscored = [f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word for word in words]
    assert parse_arguments(dashed) == parse_arguments(underscored) == parse_arguments(words)


@pytest.mark.parametrize("words", ["-n a gym/cartpole", "gym/cartpole -n a", "-n a --seed 3 gym/cartpole --json"])
def test_the_environment_may_be_any_positional_argument(words):
    options = parse_arguments(words.split())
    assert (options.env, options.name) == ("gym/cartpole", "a")


@pytest.mark.parametrize("env", ["gym/cartpole/", "gym\\cartpole", "./gym/cartpole"])
def test_folders_may_end_with_a_slash_and_config_yaml(env):
    assert parse_arguments([env]).env == "gym/cartpole"


def read_flags(words):
    """Return the settings of all flags in a command line."""
    tree = {}
    for _, layer in collect_flag_layers(parse_arguments(words.split())):
        tree = merge(tree, layer)
    return tree


def test_flags_set_settings():
    words = "gym/cartpole -n a --agents 3 --max_step 8 --max_iter 7 --seed 5 --device cpu --nn x.py"
    tree = read_flags(words)
    assert tree == {
        "base_config": {
            "name": "a",
            "n_envs": 3,
            "max_step": 8,
            "max_iter": 7,
            "seed": 5,
            "device": "cpu",
            "nn": "x.py",
        }
    }
    assert resolve([("flags", tree)]).base.n_envs == 3
    unity = read_flags("unity/3dball --editor --port 6000")
    assert unity == {"base_config": {"unity_args": {"build_path": "editor", "base_port": 6000}}}
    assert read_flags("gym/cartpole -n a --run") == {}  # with --run, -n names an existing run


@pytest.mark.parametrize("name", [name for name, instead in former.NAMES_ELSEWHERE.items() if " " not in instead])
def test_the_error_for_an_old_name_names_an_existing_option(name):
    instead = former.NAMES_ELSEWHERE[name]
    assert instead in SPELLINGS or is_setting(instead)
    advice = f"it is now {instead}" if name in former.FORMER_NAMES else f"use {instead}"
    assert former.find_renamed_setting(name if "." in name else f"sac_config.{name}") == advice


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gym/cartpole --algo PPO", "unknown option --algo; use --set base_config.algorithm=..."),
        ("gym/cartpole --algorithm PPO", "unknown option --algorithm; use --set base_config.algorithm=..."),
        ("gym/cartpole --n-envs 4", "unknown option --n_envs; use --agents"),
        ("gym/cartpole --total-timesteps 100", "unknown option --total_timesteps; use --max_step"),
        ("gym/cartpole --wandb", "unknown option --wandb; use --set base_config.tracker=wandb"),
        ("gym/cartpole --run-id a", "unknown option --run_id; use --name"),
        ("gym/cartpole --lr 1e-3", "unknown option --lr; it is now --set acer_config.learning_rate=..."),
        (
            "--env CartPole-v1",
            "unknown option --env; not needed: the environment comes first, for example gym/cartpole",
        ),
        ("train gym/cartpole", "unexpected argument 'train': leave it out, since an environment alone is trained"),
        ("CartPole-v1 -c sac", "-c needs an environment folder, and CartPole-v1 is an id; did you mean gym/cartpole?"),
        ("CartPole-v1 --tune 3", "--tune needs an environment folder"),
        ("CartPole-v1 --doctor", "--doctor needs an environment folder"),
        ("CartPole-v1 --nn other.py", "--nn needs an environment folder"),
        ("CartPole-v1 --run --use-env-nn", "--use_env_nn needs an environment folder"),
    ],
)
def test_options_of_other_programs_and_those_of_folders_are_errors_with_advice(words, message):
    with pytest.raises(UserError) as error:
        parse_arguments(words.split())
    assert str(error.value).startswith(message)


def is_setting(path: str) -> bool:
    *sections, key = path.split(".")
    place = load_defaults()
    for section in sections:
        place = place[section]
    return key in place


def test_no_old_name_is_a_current_option():
    ours = {key for section in load_defaults().values() for key in (section if isinstance(section, dict) else {})}
    assert not (set(former.NAMES_ELSEWHERE) - {"env_name"}) & ours
    assert not {f"--{name}" for name in former.NAMES_ELSEWHERE} & SPELLINGS
    assert all(map(is_setting, (former.FORMER_FLAGS | former.FLAGS_OF_LIBRARIES).values()))
    whole = [name for name in former.NAMES_ELSEWHERE if "." in name]
    assert whole
    assert not [name for name in whole if is_setting(name)]


def documented(page: str) -> set[str]:
    """Return the options that a page mentions: in commands with main.py, and as separate code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    ours = [line.split("main.py")[1].split("#")[0] for line in text.splitlines() if "main.py" in line]
    alone = re.findall(r"`(--?[a-z][\w-]*)", text)
    found = {option for line in ours for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", line)}
    return found | set(alone)


@pytest.mark.parametrize("page", ["README.md", "docs/runs.md", "docs/options.md"])
def test_documented_options_exist(page):
    shorts = {option.short for option in OPTIONS if option.short}
    found = documented(page)
    assert "--run" in found
    assert {option if option in shorts else option.replace("-", "_").replace("__", "--", 1) for option in found} <= (
        SPELLINGS | shorts
    )


def test_the_reference_lists_every_option():
    assert documented("docs/options.md") >= {option.long for option in OPTIONS}


@pytest.mark.parametrize("name", ["a b", "test_2026", "ä", "x" * 100, "1", "null"])
def test_valid_file_names_are_accepted(name):
    assert is_file_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a.", "a ", "a/b", "a\n", "a*", "nul", "Com1.txt", "x" * 101])
def test_file_names_that_any_system_rejects_are_rejected(name):
    assert not is_file_name(name)


def test_wrong_arguments_and_the_first_page_load_nothing_heavy():
    code = (
        "import sys\nfrom algorithm.cli import main\n"
        "assert main.main([]) == 0 and main.main(['gym/cartpole', '--nonsense']) == 2\n"
        "assert not {'torch', 'numpy', 'gymnasium', 'pydantic', 'rich', 'yaml'} & set(sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == make_start_page()
    assert "gym/cartpole" in finished.stdout


ERRORS_BEFORE_TORCH = {
    "gym/cartpole --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "gym/cartpole --max-step 0": "base_config.max_step is 0",
    "gym/cartpole --set base_config.log_every=often": "base_config.log_every is 'often'",
    "gym/cartpole --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "gym/cartpole --set auxiliaries.rnd.gamma=2": "auxiliaries.rnd.gamma is 2.0; it must be from 0 to 1",
    "gym/cartpole --set replay_config.alpha=0.5": "replay_config.alpha is for sampler prioritized",
    "gym/cartpole --set sac_config.gamma=0.5": "sac_config.gamma is for algorithm SAC",
    "gym/cartpole --resume --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "gym/cartpole --tune --set acer_config.gamma=much": "acer_config.gamma is 'much'",
    "CartPole-v1 --set sac_config.gamma=much": "sac_config.gamma is 'much'",
    "gym/cartpole -c unheard": "no variant 'unheard'",
    "gym/cartpole -n a": "run runs/gym/cartpole/a exists already",
    "gym/cartpole -n b --resume": "there is no run 'b'",
    "gym/cartpole --resume --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "gym/cartpole -n b --run": "there is no run 'b'",
    "gym/cartpole -n b --export": "there is no run 'b'",
    "gym/cartpole --tune --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "CartPole-v1 --set acer_config.gama=1": "did you mean acer_config.gamma?",
    "CartPole-v1 --set base_config.env_name=Acrobot-v1": "base_config.env_name is Acrobot-v1, but CartPole-v1",
    "CartPole-v1 -n a": "run runs/CartPole-v1/a exists already",
    "CartPole-v1 -n b --resume": "there is no run 'b'",
    "Unheard-v0": "Environment `Unheard` doesn't exist. If importing a module registers it, name the module",
    "gym/cartpole-v1": "did you mean gym/cartpole?",
}


def test_errors_that_need_no_torch_are_found_before_torch_is_imported(tmp_path):
    for environment in ("gym/cartpole", "CartPole-v1"):
        run = tmp_path / "runs" / environment / "a"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("base_config: {env_name: CartPole-v1}")
    code = (
        "import sys\nfrom algorithm.cli import main\n"
        f"for words in {list(ERRORS_BEFORE_TORCH)}:\n"
        "    assert main.main(words.split()) == 2, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    for line, part in zip(finished.stderr.splitlines(), ERRORS_BEFORE_TORCH.values(), strict=True):
        assert part in line


def test_something_is_printed_before_torch_is_imported(tmp_path):
    code = (
        "import builtins, sys\nfrom algorithm.cli import main\n"
        "whole = builtins.__import__\n"
        "def loaded(name, *rest):\n"
        "    if name.partition('.')[0] in ('torch', 'gymnasium', 'rich'):\n"
        "        raise OSError('too early')\n"
        "    return whole(name, *rest)\n"
        "builtins.__import__ = loaded\n"
        "for mode in ([], ['--resume'], ['--run'], ['--export']):\n"
        "    assert main.main(['gym/cartpole', *mode]) == 1\n"
    )
    run = tmp_path / "runs/gym/cartpole/a"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("base_config: {env_name: CartPole-v1}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["loading PyTorch for gym/cartpole ..."] * 4
    assert finished.stderr.splitlines() == ["OSError: too early"] * 4


def test_flags_name_settings_that_exist():
    for setting in FLAGS:
        place = load_defaults()
        for key in setting.split("."):
            assert key in place
            place = place[key]


def test_help_lists_every_option_once_in_its_group(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"])
    page = capsys.readouterr().out
    assert ended.value.code == 0 and page == make_help_page()
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", page, re.MULTILINE)
    spelled = [name.replace("-", "_").replace("__", "--", 1) for name in listed]
    assert sorted(spelled) == sorted(SPELLINGS)
    assert "--max-step N" in page and "--max-iter N" in page and not any("_" in name for name in listed)
    assert [line[:-1] for line in page.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert max(map(len, page.splitlines())) <= 110


def test_version_prints_the_version_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"samara {__version__}\n"


def test_ray_selects_the_runtime_and_the_cluster():
    (layer,) = collect_flag_layers(parse_arguments(["gym/cartpole", "--ray", "10.0.0.1:6379"]))
    expected = {
        "base_config": {"runtime": "CLUSTER"},
        "cluster_config": {"address": "10.0.0.1:6379", "host": "ray"},
    }
    assert layer == ("--ray", expected)
