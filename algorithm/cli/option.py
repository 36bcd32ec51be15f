"""The description of one option of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Spellings with underscores, which users know from earlier programs; help shows all others with dashes.
UNDERSCORED = ("--env_args", "--max_iter", "--use_env_nn", "--disable_sample", "--logger_in_file")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of the command line.

    Attributes:
        group: the group that it is listed in, on the help page.
        spelling: its long form, with underscores.
        help: its meaning.
        modes: the modes that accept it.
        setting: path of the setting that it sets; None if it sets none.
        short: its short form.
        parser_args: further arguments of `argparse.ArgumentParser.add_argument`.
    """

    group: str
    spelling: str
    help: str
    modes: tuple[str, ...]
    setting: str | None = None
    short: str | None = None
    parser_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its attribute in the parsed options."""
        return self.spelling.removeprefix("--")

    @property
    def usage(self) -> str:
        """Its forms and the name of its value, as the help page shows them."""
        long = self.spelling if self.spelling in UNDERSCORED else f"--{self.name.replace('_', '-')}"
        takes_value = "action" not in self.parser_args or "nargs" in self.parser_args
        value = self.parser_args.get("metavar", self.name.upper()) if takes_value else ""
        value += f" [{value} ...]" if "nargs" in self.parser_args else ""
        return f"{f'{self.short}, ' if self.short else ''}{long} {value}".rstrip()
