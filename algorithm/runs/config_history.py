"""The settings that a run used, from which env step on: configs/ in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorithm.checkpointing.atomic_io import replace_text, set_aside
from algorithm.config.loader import Tree, read_yaml
from algorithm.config.yaml_text import dump
from algorithm.errors import UserError


class ConfigHistory:
    """The files configs/<env steps>.yaml of a run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read_last(self) -> Tree:
        """Return the settings that the run used last; empty if there is no file."""
        files = self._files()
        return read_yaml(files[-1]) if files else {}

    def record(self, tree: Tree, env_steps: int) -> None:
        """Write the settings that the run uses from `env_steps` on, if they are new."""
        self.folder.mkdir(exist_ok=True)
        for path in self._files():
            if int(path.stem) > env_steps:  # of checkpoints that were set aside
                path.unlink()
        if self.read_last() != tree:
            replace_text(self.folder / f"{env_steps:012d}.yaml", dump(tree))

    def recover(self, log: Callable[[str], None]) -> None:
        """Set aside every damaged file; `log` receives a line for each, and one if no file is left."""
        for path in self._files():
            try:
                read_yaml(path)
            except UserError as error:
                log(f"{' '.join(str(error).split())}: it is set aside as {set_aside(path).name}")
        if not self._files():
            log(f"{self.folder} has no settings to compare with: config.yaml is used as it is")

    def _files(self) -> list[Path]:
        """Return the files, oldest first."""
        return sorted(path for path in self.folder.glob("*.yaml") if path.stem.isdecimal())
