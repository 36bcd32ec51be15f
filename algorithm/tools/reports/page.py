"""Pages of a run: templates of Jinja, a base page in one file without a network, and the formats of their values."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from algorithm import __version__
from algorithm.config.yaml_layers import format_value
from algorithm.errors import clean_text
from algorithm.training.metrics import format_number

TEMPLATES = Path(__file__).resolve().parent / "templates"
MAX_VALUE = 300  # characters of the value of a setting


def render(template: str, **values: Any) -> str:
    """Return the text of a template with values.

    The filters are those of Jinja, `number` (four significant digits, a dash for None), `count` (an integer with
    commas), `duration` (of seconds), `setting` (a value as YAML), and `code` (a line inside of code in Markdown, which
    is marked as `safe` then). All values are escaped, as HTML in a template `*.html` or `*.svg` and as Markdown in
    others, and cleaned (`clean_text`), except those that a template marks as `safe`.

    Args:
        template: file in the folder of templates. A page extends `base.html`, whose blocks are `title` and `content`.
        values: values by the names that the template uses; a missing one is an error.
    """
    return make_environment().get_template(template).render(version=__version__, **values)


@cache
def make_environment() -> Any:
    """Return the environment of the templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_eval_context

    @pass_eval_context
    def finalize(context: Any, value: Any) -> Any:
        """Return the value of an expression as a template prints it; Jinja escapes it in HTML."""
        if not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return clean_text(value) if context.autoescape else escape_markdown(value)

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: bool(name and name.endswith((".html", ".svg"))),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": format_number,
        "count": format_count,
        "duration": format_duration,
        "setting": format_setting,
        "code": format_code,
    }
    return environment


def escape_markdown(text: str) -> str:
    """Return a text as one line of Markdown that contains no HTML, no link, no picture, and no end of a cell."""
    return " ".join(re.sub(r"[\\|\[]", r"\\\g<0>", clean_text(text)).replace("<", "&lt;").split())


def format_code(text: str) -> str:
    """Return a text as one line inside of code in Markdown, which it does not end; code has no escapes."""
    return " ".join(clean_text(text).replace("`", "'").replace("<", "&lt;").split())


def format_count(value: float | None) -> str:
    """Return an integer with commas; a dash for None."""
    return "-" if value is None else f"{value:,.0f}"


def format_duration(seconds: float | None) -> str:
    """Return a time: 19.5 s, 12 min 5 s, 3 h 20 min; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_setting(value: Any) -> str:
    """Return the value of a setting as YAML, shortened if it is long."""
    text = clean_text(format_value(value))  # before a password is cut, so that it is found
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ..."
