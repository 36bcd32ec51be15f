"""The page of the command line is up to date and contains all options."""

from algorithm.cli import reference
from algorithm.cli.options import OPTIONS


def test_the_page_equals_the_output_of_make_docs(tmp_path):
    reference.write_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == reference.PAGE_FILE.read_bytes().replace(b"\r\n", b"\n"), (
        "run: make docs"
    )


def test_the_page_has_every_option():
    page = reference.make_page()
    assert all(f"| `{option.spelling}`" in page for option in OPTIONS)
