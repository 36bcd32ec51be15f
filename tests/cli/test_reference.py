"""The page of the command line is up to date and contains all options."""

import re
from pathlib import Path

from algorithm.cli import reference
from algorithm.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_equals_the_output_of_make_docs(tmp_path):
    reference.write_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == reference.PAGE_FILE.read_bytes().replace(b"\r\n", b"\n"), (
        "run: make docs"
    )


def test_the_page_has_every_command():
    page = reference.make_page()
    assert all(f"\n    python main.py {name} " in page for name in COMMANDS)


def test_pages_spell_options_with_dashes():
    kept = {"runs.md": ["--max_step"]}  # states that both are equivalent
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        found = re.findall(r"--[a-z]+_[a-z_]+", page.read_text(encoding="utf-8"))
        assert found == kept.get(page.name, []) or page.name == "migration.md", page  # names of another program
