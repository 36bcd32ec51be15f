"""What the guides say of files and settings is so."""

import re
from pathlib import Path

import pytest
import yaml

import main
from algorithm.cli.options import OPTIONS
from algorithm.config import renamed_settings as former
from algorithm.config.effects import check_effects
from algorithm.config.loader import defaults, read_own_variant, read_variant, resolve
from tests.envs.folders import FOLDERS

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"```(?:python|yaml)\n# (envs/\S+)\n(.*?)```", re.DOTALL)
ACER_TORCH = ROOT / "docs" / "from_acer_torch.md"
ADVANCED_SAC = ROOT / "docs" / "from_advanced_sac.md"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", guide.read_text(encoding="utf-8"))
    assert [link for link in links if not (guide.parent / link).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_settings_by_their_full_names_exist(guide):
    tree = defaults()
    named = re.findall(
        r"\b(base_config|replay_config|acer_config|sac_config)\.(\w+)", guide.read_text(encoding="utf-8")
    )
    assert [f"{section}.{key}" for section, key in named if key not in tree[section]] == []


def variant_of(guide, name, tmp_path):
    """The settings of a variant in the file that a guide calls config.yaml."""
    text = guide.read_text(encoding="utf-8")
    path = tmp_path / "config.yaml"
    path.write_text(re.search(r"```yaml\n(# config\.yaml\n.*?)```", text, re.DOTALL).group(1), encoding="utf-8")
    settings = resolve([("config.yaml", read_variant(path, name))])
    check_effects(settings, [("config.yaml", read_own_variant(path, name))])
    return settings


def test_acer_torchs_defaults_resolve(tmp_path):
    settings = variant_of(ACER_TORCH, "acer_torch", tmp_path)
    assert settings.agent.sequence_length == settings.agent.rollout_length == 1000
    assert settings.agent.trust_region == "off"


def test_advanced_sacs_defaults_resolve(tmp_path):
    settings = variant_of(ADVANCED_SAC, "advanced_sac", tmp_path)
    assert settings.base.algorithm == "SAC"
    assert settings.agent.clip_epsilon == 0.2
    assert settings.agent.n_step == settings.agent.sequence_length == 1


def test_every_name_of_advanced_sac_is_one_of_ours_or_is_answered():
    rows = re.findall(r"^\| (`.+?`[^|]*) \|", ADVANCED_SAC.read_text(encoding="utf-8"), re.M)
    named = [name for row in rows for name in re.findall(r"`(-{0,2}[a-z_]+)`", row)]
    flags = {name.lstrip("-") for name in named if name.startswith("-")}
    settings = {name for name in named if not name.startswith("-")} - {"pre_action", "obs_list"}
    assert len(flags) > 30
    assert len(settings) > 70
    tree = defaults()
    sections = [*tree.values(), tree["base_config"]["unity_args"]]
    ours = {key for section in sections if isinstance(section, dict) for key in section} | set(tree)
    answered = {name.rpartition(".")[2] for name in former.ADVANCED_SAC}
    assert settings - ours - answered == set()
    assert flags - {option.name for option in OPTIONS} - answered == set()
    assert answered - settings - flags == set()


def test_the_goals_of_the_readme_are_those_of_the_folders():
    rows = re.findall(
        r"^\| `(\S+/\S+)` \| (\S+).*? \| ([\d,]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    told = {name: (float(goal.replace(",", "")), int(within.replace(",", ""))) for name, goal, within in rows}
    folders = {name: ROOT / "envs" / name / "config.yaml" for name in FOLDERS}
    goals = {name: resolve([("", read_variant(path, "default"))]).goal for name, path in folders.items()}
    claimed = {name: goal for name, goal in goals.items() if goal.return_ is not None}  # of Unity nothing is
    assert told == {name: (goal.return_, goal.step_budget) for name, goal in claimed.items()}


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
    if any("pettingzoo" in text for path, text in files(guide).items() if path.startswith(f"envs/{name}/")):
        pytest.importorskip("pettingzoo")
    for path, text in files(guide).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    # No environment may raise: they do where an action is none of theirs.
    quick = ["base_config.n_envs=2", "base_config.max_env_restarts=0", "base_config.max_step_each_iter=30"]
    tree = read_variant(Path("envs", name, "config.yaml"), variant)
    algorithm = tree["base_config"].get("algorithm", "ACER").lower()
    learning = [f"{algorithm}_config.{quick}" for quick in ("learning_starts=40", "batch_size=4")]
    learning += ["base_config.log_every=100", "goal=null"]
    options = ["--max_step", "200", "--set", *quick, *learning]
    assert main.main([name, "-c", variant, "-n", "a", *options]) == 0
    assert main.main([name, "-n", "a", "--run", "--max_iter", "1"]) == 0
