"""The generated pages are up to date, and contain all settings and options."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml

from algorithm.annotations import Range, Spellings
from algorithm.config.yaml_layers import find_value, iterate_paths, load_defaults, read_entries

ROOT = Path(__file__).resolve().parents[2]
SPEC = spec_from_file_location("tables", ROOT / "docs" / "tables.py")
TABLES = module_from_spec(SPEC)
SPEC.loader.exec_module(TABLES)


@pytest.mark.parametrize("path", TABLES.PAGES, ids=lambda path: path.stem)
def test_a_page_equals_the_output_of_make_docs(path):
    assert path.read_text(encoding="utf-8") == TABLES.make_page(path), "run: make docs"


def test_pages_spell_options_with_dashes():
    kept = {"runs.md": ["--max_step"]}  # states that both are equivalent
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        found = re.findall(r"--[a-z]+_[a-z_]+", page.read_text(encoding="utf-8"))
        assert found == kept.get(page.name, []) or page.name == "migration.md", page  # names of another program


def test_every_line_of_the_defaults_is_read_with_its_default_and_meaning():
    defaults, entries = load_defaults(), read_entries()
    assert [entry.path for entry in entries] == list(iterate_paths(defaults))
    for entry in entries:
        value = find_value(defaults, entry.path)
        if entry.default is None:
            assert isinstance(value, dict)
        else:
            assert yaml.safe_load(entry.default) == pytest.approx(value) or entry.default == value
            assert entry.meaning, entry.path


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (bool, "true or false"),
        (Annotated[int, Range(at_least=1)], "integer at least 1"),
        (Annotated[float | None, Range(above=0)], "number above 0, null"),
        (Annotated[int, Range(at_least=1)] | dict[str, int] | None, "integer at least 1, mapping, null"),
        (Annotated[Literal["long", "short"], Spellings(s="short")], "`long`, `short` (`s`)"),
        (list[str], "list"),
    ],
)
def test_the_values_of_a_type_are_described(hint, text):
    assert TABLES.describe_type(hint) == text


@pytest.mark.parametrize(
    "line",
    [
        "| `unity_args.width` | `84` | integer at least 1 | width of a player's window, in pixels |",
        "| `alpha` | `0.9` | number at least 0 | exponent of the priorities: a sequence is drawn in proportion to "
        "priority ** alpha; only with sampler prioritized |",
        "- `n_envs`: the saved replay has a lane for each environment",
        "- `agent`: the saved networks belong to these agents",
    ],
)
def test_the_page_of_settings_has_values_conditions_and_settings_fixed_on_resume(line):
    assert line in TABLES.make_setting_tables().splitlines()
