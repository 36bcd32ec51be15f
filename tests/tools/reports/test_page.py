"""Pages: the formats of values, and escaping."""

import jinja2
import pytest

from algorithm.tools.reports import page
from algorithm.tools.reports.page import MAX_VALUE, format_count, format_duration, format_setting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (19.5, "19.5 s"), (59.94, "59.9 s"), (90, "1 min 30 s"), (12_000, "3 h 20 min"), (None, "-")],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_counts():
    assert format_count(14_321) == "14,321" and format_count(None) == "-" and format_count(0) == "0"


def test_values_are_escaped_in_pages_and_missing_values_are_errors(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text("{{ a }} {{ 0.12345|number }} {{ 1e4|count }} {{ 61|duration }}")
    (tmp_path / "a.md").write_text("{{ a }}")
    (tmp_path / "b.md").write_text("{{ a|code|safe }}")
    monkeypatch.setattr(page, "TEMPLATES", tmp_path)
    page.make_environment.cache_clear()
    try:
        assert page.render("a.html", a="<b>") == "&lt;b&gt; 0.123 10,000 1 min 1 s"
        assert page.render("a.md", a="<b> | [c](d)\n\\\x1b[0m") == r"&lt;b> \| \[c](d) \\\[0m"
        assert page.render("b.md", a="a `<b>`\n```") == "a '&lt;b>' '''"
        assert page.render("a.html", a="\x1b[31mhttps://me:secret@host").startswith("[31mhttps://***@host ")
        with pytest.raises(jinja2.UndefinedError):
            page.render("a.html")
    finally:
        page.make_environment.cache_clear()


def test_long_values_are_cut_and_values_have_the_form_of_yaml():
    assert [format_setting(value) for value in (None, [1, "x"], True)] == ["null", "[1, x]", "true"]
    assert format_setting("y" * 1000) == "y" * MAX_VALUE + " ..."
    address = "https://me:" + "secret" * 50 + "@host"  # whose password is longer than what is shown
    assert format_setting(address) == "https://***@host"
    assert format_setting("x" * 290 + address) == "x" * 290 + "https://**" + " ..."
