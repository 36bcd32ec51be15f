"""The page of settings is up to date and contains all settings."""

from typing import Annotated, Literal

import pytest
import yaml

from algorithm.annotations import Range, Spellings
from algorithm.config import reference
from algorithm.config.yaml_layers import load_defaults


def paths(tree, above=""):
    """Yield the path of every section and setting of the defaults."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")


def test_the_page_equals_the_output_of_make_docs(tmp_path):
    reference.write_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == reference.PAGE_FILE.read_bytes().replace(b"\r\n", b"\n"), (
        "run: make docs"
    )


def test_the_page_has_every_setting_with_its_default_and_meaning():
    found = {entry.path: entry for entry in reference.read_entries()}
    assert list(found) == list(paths(load_defaults()))
    for path, entry in found.items():
        value = load_defaults()
        for key in path.split("."):
            value = value[key]
        if entry.default is None:
            assert isinstance(value, dict)
        else:
            assert yaml.safe_load(entry.default) == pytest.approx(value) or entry.default == value
            assert entry.meaning, path


def test_a_line_that_is_not_a_setting_is_an_error_that_names_it(tmp_path, monkeypatch):
    broken = tmp_path / "default_config.yaml"
    broken.write_text("base_config:\n  - 3\n")
    monkeypatch.setattr(reference, "DEFAULTS_FILE", broken)
    with pytest.raises(ValueError, match="line 2"):
        reference.read_entries()


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
    assert reference.describe_type(hint) == text


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
def test_the_page_has_values_conditions_and_settings_fixed_on_resume(line):
    assert line in reference.make_page().splitlines()
