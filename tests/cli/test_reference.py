"""The page of settings is what is generated, and says all there is."""

import pytest
import yaml

from algorithm.cli import reference
from algorithm.config.loader import load_defaults


def paths(tree, above=""):
    """Every section and setting of the defaults."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")


def test_the_page_is_what_make_docs_writes(tmp_path):
    reference.write_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == reference.PAGE_FILE.read_bytes().replace(b"\r\n", b"\n"), (
        "run: make docs"
    )


def test_every_setting_is_there_with_its_default_and_a_meaning():
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


def test_a_line_that_is_no_setting_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "default_config.yaml"
    broken.write_text("base_config:\n  - 3\n")
    monkeypatch.setattr(reference, "DEFAULTS_FILE", broken)
    with pytest.raises(ValueError, match="line 2"):
        reference.read_entries()
