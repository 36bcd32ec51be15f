"""The pages of the documentation: links, settings, commands and code are correct."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml

from algorithm import train
from algorithm.cli import main
from algorithm.cli.parser import make_parser, parse_arguments
from algorithm.config.loader import check_effects, resolve
from algorithm.config.yaml_layers import iterate_settings, load_defaults, read_own_variant, read_variant
from algorithm.parts.env_folder import is_id
from tests.envs.folders import FOLDERS
from tests.guides import DOCS, GUIDES, LINK, ROOT, anchors, blocks, commands, files, read

MIGRATION = DOCS / "migration.md"
TUTORIAL = DOCS / "start.md"
# Short runs that together write the metrics of all algorithms.
METRIC_RUNS = [
    ("gym/cartpole", "ACER", {"learning_starts": 32}, {"base_config.evaluate_every": 60}),
    ("gym/cartpole", "ACER", {"learning_starts": 32, "trust_region": "full"}, {}),
    ("hybrid/parking", "SAC", {"learning_starts": 32, "n_step": 2, "sequence_length": 4}, {}),
    ("gym/cartpole", "REACTOR", {"learning_starts": 32}, {}),
    ("gym/cartpole", "A2C", {"rollout_length": 16}, {"auxiliaries": {"rnd": {}}}),
    ("gym/cartpole", "PPO", {"rollout_length": 16, "epochs": 1}, {}),
]
PAGES = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
QUICK = ["base_config.n_envs=2", "base_config.max_env_restarts=0", "base_config.max_step_each_iter=30"]


@PAGES
def test_links_lead_to_a_file_and_a_heading(guide):
    missing = []
    for link, anchor in LINK.findall(read(guide)):
        target = (guide.parent / link).resolve() if link else guide
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link + anchor)
    assert missing == []


def test_every_page_is_in_the_table_of_contents():
    listed = {line for block in blocks(DOCS / "index.md", "{toctree}") for line in block.split() if "/" not in line}
    assert {path.stem for path in DOCS.glob("*.md")} - listed == {"index"}


@PAGES
def test_commands_are_parsed_and_their_folders_exist(guide):
    """Commands that train check their folder; those that create one are followed by commands that use it."""
    for path, text in [*files(guide).items(), ("../my/task/config.yaml", "default: {}\n")]:
        create(Path("project", path), text)
    Path("trainer_config.yaml").touch()
    Path("project", "examples").symlink_to(ROOT / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("project")
        for command in commands(guide):
            options = parse_arguments(command)[1]
            if command[0] == "init":
                create(Path("envs", options.folder, "config.yaml"), "default: {}\n")
            elif getattr(options, "env", None) is not None and not Path(options.env).is_absolute():
                folder = Path("envs", options.env)
                names_group = command[0] == "gallery" and any(name.startswith(f"{options.env}/") for name in FOLDERS)
                is_known = options.env in FOLDERS or names_group or is_id(options.env)
                assert is_known or any((path / "config.yaml").exists() for path in (folder, Path(options.env))), command


def create(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@PAGES
def test_modules_and_settings_that_are_named_exist_and_python_blocks_compile(guide):
    text, tree = read(guide), load_defaults()
    modules = re.findall(r"`((?:algorithm|tests|benchmarks|envs)/[\w/]+\.py)`", text)
    assert [path for path in modules if not (ROOT / path).exists() and path not in files(guide)] == []
    named = re.findall(r"\b(base_config|replay_config|acer_config|sac_config)\.(\w+)", text)
    assert [f"{section}.{key}" for section, key in named if key not in tree[section]] == []
    for number, code in enumerate(blocks(guide, "python")):
        compile(code, f"{guide.name}, block {number}", "exec")


def test_the_architecture_names_classes_that_exist():
    named = set(re.findall(r"`([A-Z][a-z]\w+)[`.(]", read(DOCS / "architecture.md")))
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "algorithm").rglob("*.py"))
    assert named - set(re.findall(r"^class (\w+)", source, re.M)) == set()


@PAGES
def test_yaml_blocks_are_settings(guide, tmp_path):
    for code in blocks(guide, "yaml"):
        tree = yaml.safe_load(code)
        if set(tree) <= set(load_defaults()):
            resolve([(guide.name, tree)])
            continue
        create(tmp_path / "config.yaml", code)
        for variant in tree:
            resolve([("config.yaml", read_variant(tmp_path / "config.yaml", variant))])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acer_torch", {"sequence_length": 1000, "rollout_length": 1000, "trust_region": "off"}),
        ("advanced_sac", {"clip_epsilon": 0.2, "n_step": 1, "sequence_length": 1}),
    ],
)
def test_the_variants_of_other_programs_resolve(name, expected, tmp_path):
    path = tmp_path / "config.yaml"
    (text,) = [
        code for code in blocks(MIGRATION, "yaml") if code.startswith("# config.yaml\n") and f"\n{name}:" in code
    ]
    path.write_text(text, encoding="utf-8")
    settings = resolve([("config.yaml", read_variant(path, name))])
    check_effects(settings, [("config.yaml", read_own_variant(path, name))])
    assert {key: getattr(settings.agent, key) for key in expected} == expected


def test_names_that_are_the_same_in_advanced_sac_exist():
    """All other names have what replaces them in the second cell, which tests/config compares with the settings."""
    rows = re.findall(r"^\| (`.+?`[^|]*) \| the same", read(MIGRATION), re.M)
    named = {name.lstrip("-") for row in rows for name in re.findall(r"`(-{0,2}[a-z_]+)`", row)}
    options = {action.dest for action in make_parser()._actions}
    settings = {path.rpartition(".")[2] for path in dict(iterate_settings(load_defaults()))}
    assert len(named) > 30 and named <= options | settings


def test_the_autoscaler_file_is_valid_for_ray():
    util = pytest.importorskip("ray.autoscaler._private.util")
    text = read(DOCS / "scaling.md")
    (block,) = (block for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE) if "cluster_name" in block)
    config = yaml.safe_load(textwrap.dedent(block))
    util.validate_config(util.prepare_config(config))  # with Ray's defaults, as `ray up` does
    assert "--include-dashboard=false" in config["head_start_ray_commands"][1]
    with pytest.raises(Exception, match="is not valid under any of the given schemas|Additional properties"):
        util.validate_config(util.prepare_config({**config, "max_machines": 3}))


def test_the_listed_goals_equal_the_goals_of_the_folders():
    rows = re.findall(
        r"^\| `(\S+/\S+)` \| .*? \| .*? \| (-?[\d.,]+).*? \| ([\d,]+) \|", read(DOCS / "environments.md"), re.M
    )
    listed = {name: (float(goal.replace(",", "")), int(budget.replace(",", ""))) for name, goal, budget in rows}
    folders = {name: ROOT / "envs" / name / "config.yaml" for name in FOLDERS}
    goals = {name: resolve([("", read_variant(path, "default"))]).goal for name, path in folders.items()}
    # Folders of Unity, and folders that are measured after a fixed number of steps, have no goal.
    claimed = {name: goal for name, goal in goals.items() if goal is not None and goal.return_ is not None}
    assert listed == {name: (goal.return_, goal.step_budget) for name, goal in claimed.items()}


def examples():
    """Every variant of every environment folder that a page contains."""
    for guide in GUIDES:
        for path, text in files(guide).items():
            name = path.removeprefix("envs/").removesuffix("/config.yaml")
            for variant in yaml.safe_load(text) if path.endswith("/config.yaml") else ():
                yield pytest.param(guide, name, variant, id=f"{guide.stem}-{name}-{variant}")


@pytest.mark.parametrize(("guide", "name", "variant"), list(examples()))
def test_an_example_of_an_environment_trains_and_plays(guide, name, variant, tmp_path, monkeypatch):
    if any("pettingzoo" in text for path, text in files(guide).items() if path.startswith(f"envs/{name}/")):
        pytest.importorskip("pettingzoo")
    monkeypatch.syspath_prepend(tmp_path)
    for path, text in files(guide).items():
        create(Path(path), text)
    # No environment may raise: they do where an action is none of theirs.
    tree = read_variant(Path("envs", name, "config.yaml"), variant)
    algorithm = tree["base_config"].get("algorithm", "ACER").lower()
    learning = [f"{algorithm}_config.{quick}" for quick in ("learning_starts=40", "batch_size=4")]
    learning += ["base_config.log_every=50", "goal=null", "base_config.evaluate_every=null"]
    options = ["--max_step", "100", "--set", *QUICK, *learning]
    assert main.main([name, "-c", variant, "-n", "a", *options]) == 0
    assert main.main([name, "-n", "a", "--run", "--max_iter", "1"]) == 0


def list_documented_metrics() -> list[str]:
    """Return the names in the first column of the guide's table."""
    table = read(DOCS / "reports.md").partition("\n## Metrics\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, re.M)
    return [name for row in rows for name in re.findall(r"`([\w/<>]+)`", row)]


def test_the_guide_lists_the_metrics_that_runs_write():
    common = {"goal": None, "base_config.n_envs": 2, "base_config.log_every": 60, "base_config.max_step": 120}
    common["base_config.max_step_each_iter"] = 20  # short episodes
    written = set()
    for index, (environment, algorithm, own, settings) in enumerate(METRIC_RUNS):
        settings = {**common, "base_config.algorithm": algorithm, f"{algorithm.lower()}_config": own, **settings}
        result = train(environment, name=f"run-{index}", settings=settings)
        written |= set((result.folder / "metrics.csv").read_text(encoding="utf-8").partition("\n")[0].split(","))
    patterns = {name: re.compile(re.sub(r"<\w+>", r"\\w+", name)) for name in list_documented_metrics()}
    exact = {name for name in patterns if "<" not in name}
    missing = {name for name in written - exact if not any(pattern.fullmatch(name) for pattern in patterns.values())}
    assert missing == set(), "not in the guide"
    unwritten = {name for name, pattern in patterns.items() if not any(map(pattern.fullmatch, written))}
    assert unwritten == set(), "only in the guide"


@pytest.mark.parametrize("guide", [ROOT / "README.md", DOCS / "index.md"], ids=lambda path: path.name)
def test_the_example_of_load_runs(guide):
    assert main.main(["gym/cartpole", "-n", "first", "--max_step", "200"]) == 0
    (example,) = [code for code in blocks(guide, "python") if "load(" in code]
    variables = {"obs": np.zeros(4, np.float32)}
    exec(example, variables)
    assert variables["action"] in (0, 1)


def test_the_example_of_train_runs():
    variables = {}
    exec(files(DOCS / "start.md")["train.py"], variables)
    assert variables["result"].counters.env_steps >= 2000
    assert variables["agent"].act(np.zeros(4, np.float32)) in (0, 1)


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    shown = files(TUTORIAL)
    create(Path("thermostat.py"), shown["thermostat.py"])
    lines = commands(TUTORIAL)
    start = next(number for number, words in enumerate(lines) if "thermostat" in " ".join(words))
    init, first, *others = lines[start:]
    assert main.main(init) == 0
    assert main.main([*first, "--max_step", "2000"]) == 0
    for path, text in shown.items():
        create(Path(path), text)
    for command in others:
        shorter = [] if {"--run", "list", "export"} & set(command) else ["--max_step", "4000"]
        assert main.main([*command, *shorter]) == 0, command
    for path in ("play.py", "serve.py"):
        exec(shown[path], {})
    assert re.search(r"return -?[\d.]+\nheater level [012]\n", capsys.readouterr().out)
