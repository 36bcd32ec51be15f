"""What the guides say of files and settings is so."""

import re
from pathlib import Path

import pytest

from algorithm.experiment.settings import defaults, read_variant, resolve

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
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
