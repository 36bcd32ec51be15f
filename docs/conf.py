"""Sphinx's configuration of the documentation site: `make site`. Neither the build nor the pages use the network."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # autodoc documents this working tree, not an installed package

project = "Samara"
copyright = "the authors of Samara"
author = "the authors of Samara"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

smartquotes = False  # `--` begins an option
myst_enable_extensions = ["html_image"]  # with a width
myst_heading_anchors = 4  # links to headings are written as on GitHub: page.md#heading

autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Samara"
html_copy_source = False


def escape_docstring(app, what, name, obj, options, lines):
    """Turn a docstring in plain text with `code` into reStructuredText."""
    parts = re.split(r"(`+[^`]+`+)", "\n".join(lines))  # every second part is code
    parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part.strip('`')}``" for part in parts[1::2]]
    lines[:] = "".join(parts).split("\n")


def setup(app):
    """Register the hook, to run before napoleon reads the sections of the docstring."""
    app.connect("autodoc-process-docstring", escape_docstring, priority=100)
