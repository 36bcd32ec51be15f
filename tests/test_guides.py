"""What the guides say of files and settings is so."""

import re
from pathlib import Path

import pytest
import yaml

import main
from algorithm.experiment.settings import defaults, read_variant, resolve

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"```(?:python|yaml)\n# (envs/\S+)\n(.*?)```", re.DOTALL)
ACER_TORCH = ROOT / "docs" / "from_acer_torch.md"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", guide.read_text(encoding="utf-8"))
    assert [link for link in links if not (guide.parent / link).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_settings_by_their_full_names_exist(guide):
    tree = defaults()
    named = re.findall(r"\b(base_config|replay_config|acer_config)\.(\w+)", guide.read_text(encoding="utf-8"))
    assert [f"{section}.{key}" for section, key in named if key not in tree[section]] == []


def test_acer_torchs_defaults_resolve(tmp_path):
    config = re.search(r"```yaml\n(.*?)```", ACER_TORCH.read_text(encoding="utf-8"), re.DOTALL).group(1)
    path = tmp_path / "config.yaml"
    path.write_text(config, encoding="utf-8")
    settings = resolve([("config.yaml", read_variant(path, "acer_torch"))])
    assert settings.agent.trace_length == settings.agent.collect_steps == 1000
    assert settings.agent.trust_region == "off"


def test_the_goals_of_the_readme_are_those_of_the_folders():
    rows = re.findall(
        r"^\| `(\S+/\S+)` \| (\S+).*? \| ([\d,]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    told = {name: (float(goal.replace(",", "")), int(within.replace(",", ""))) for name, goal, within in rows}
    folders = {path.parent.relative_to(ROOT / "envs").as_posix(): path for path in ROOT.glob("envs/*/*/config.yaml")}
    goals = {name: resolve([("", read_variant(path, "default"))]).goal for name, path in folders.items()}
    claimed = {name: goal for name, goal in goals.items() if goal.return_ is not None}  # of Unity nothing is
    assert told == {name: (goal.return_, goal.within) for name, goal in claimed.items()}


def files(guide):
    """{path: text} of the files that a guide shows whole."""
    return {path: text for path, text in CODE.findall(guide.read_text(encoding="utf-8"))}


def examples():
    """Every variant of every environment's folder that a guide shows."""
    for guide in GUIDES:
        for path, text in files(guide).items():
            name = path.removeprefix("envs/").removesuffix("/config.yaml")
            for variant in yaml.safe_load(text) if path.endswith("config.yaml") else ():
                yield pytest.param(guide, name, variant, id=f"{guide.stem}-{name}-{variant}")


@pytest.mark.parametrize(("guide", "name", "variant"), list(examples()))
def test_an_example_of_an_environment_trains_and_plays(guide, name, variant):
    for path, text in files(guide).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    # No environment may raise: they do where an action is none of theirs.
    quick = ["base_config.n_envs=2", "base_config.max_env_restarts=0", "base_config.max_step_each_iter=30"]
    learning = ["acer_config.replay_start=40", "acer_config.batch_size=4", "base_config.log_every=100", "goal=null"]
    options = ["--max_step", "200", "--set", *quick, *learning]
    assert main.main([name, "-c", variant, "-n", "a", *options]) == 0
    assert main.main([name, "-n", "a", "--run", "--max_iter", "1"]) == 0
