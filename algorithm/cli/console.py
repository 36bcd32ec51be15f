"""The console of the command line, which removes control characters from all that it prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from algorithm.errors import remove_control_characters

DEFAULT_WIDTH = 200  # columns of a table if the output is not a terminal


class SafeConsole(Console):
    """A console whose own codes reach the terminal, and none that names and texts of run folders contain.

    Args:
        stderr: whether it prints on standard error.
    """

    def __init__(self, stderr: bool):
        super().__init__(stderr=stderr, highlight=False, markup=False, soft_wrap=True)
        if not self.is_terminal:
            self.width = DEFAULT_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the parts of what is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else remove_control_characters(text), style, control)
