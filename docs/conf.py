"""Sphinx's configuration of the documentation site: `make site`. Neither the build nor the pages use the network."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # autodoc documents this working tree, not an installed package

project = "Samara"
copyright = "the authors of Samara"
author = "the authors of Samara"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_heading_anchors = 4  # links to headings are written as on GitHub: page.md#heading
suppress_warnings = ["myst.xref_ambiguous"]

autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Samara"
html_copy_source = False
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}
