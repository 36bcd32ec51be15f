"""An option of the command line, and the kinds of values that options have."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of the command line.

    Attributes:
        group: the group that it is listed in, on the help page.
        spelling: its long form, with underscores.
        help: its meaning.
        modes: the modes that accept it.
        setting: path of the setting that it sets; None if it sets none.
        implied: further settings that it sets, by path.
        short: its short form.
        parser_args: further arguments of `argparse.ArgumentParser.add_argument`.
    """

    group: str
    spelling: str
    help: str
    modes: tuple[str, ...]
    setting: str | None = None
    implied: Mapping[str, Any] = field(default_factory=dict)
    short: str | None = None
    parser_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its attribute in the parsed options."""
        return self.spelling.removeprefix("--")

    @property
    def long(self) -> str:
        """Its long form as the help page and the documentation show it, with dashes."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def usage(self) -> str:
        """Its forms and the name of its value, as the help page shows them."""
        takes_value = "action" not in self.parser_args or "nargs" in self.parser_args
        value = self.parser_args.get("metavar", self.name.upper()) if takes_value else ""
        forms = {"+": f"{value} [{value} ...]", "?": f"[{value}]"}
        value = forms.get(self.parser_args.get("nargs", ""), value)
        return f"{f'{self.short}, ' if self.short else ''}{self.long} {value}".rstrip()


def _parse_integer(text: str) -> int:
    """Return an integer, read as integers in settings are: 1e6 and 1_000 are valid, 010 and 1:30 are not.

    Raises:
        ArgumentTypeError: The text is not such an integer.
    """
    from algorithm.config.yaml_layers import parse_yaml

    try:
        number = parse_yaml(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}: {error}") from error
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


INTEGER_ARGS: dict[str, Any] = {"type": _parse_integer, "metavar": "N"}
FLAG_ARGS: dict[str, Any] = {"action": "store_true"}
PAIR_ARGS: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "KEY=VALUE"}
