"""The records of a run that --resume compares with: its settings over time, and the specs of its roles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithm.annotations import FixedOnResume
from algorithm.atomic_io import replace_text, set_aside
from algorithm.config.loader import Settings, name_host
from algorithm.config.unused_settings import find_failure, iterate_annotations
from algorithm.config.yaml_layers import Tree, format_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.records_io import RecordError, read_json, write_json
from algorithm.specs import Role


class ConfigHistory:
    """The files configs/<env steps>.yaml of a run: the settings that it used from this env step on."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read_last(self) -> Tree:
        """Return the settings that the run used last; empty if there is no file."""
        files = self._files()
        return name_host(read_yaml(files[-1])) if files else {}

    def read_all(self, log: Callable[[str], None]) -> list[tuple[int, Tree]]:
        """Return the env steps and settings of every file, oldest first; `log` receives a line for a damaged one."""
        found = []
        for path in self._files():
            try:
                found.append((int(path.stem), read_yaml(path)))
            except UserError as error:
                log(" ".join(str(error).split()))
        return found

    def record(self, tree: Tree, env_steps: int) -> None:
        """Write the settings that the run uses from `env_steps` on, if they are new."""
        self.folder.mkdir(exist_ok=True)
        for path in self._files():
            if int(path.stem) > env_steps:  # belongs to checkpoints that were set aside
                path.unlink()
        files, text = self._files(), format_yaml(tree)
        # Texts are compared first, since YAML is slow to read.
        if not files or (files[-1].read_bytes() != text.encode() and self.read_last() != tree):
            replace_text(self.folder / f"{env_steps:012d}.yaml", text)

    def recover(self, log: Callable[[str], None]) -> None:
        """Set aside every damaged file; `log` receives a line for each file, and a line if no file is left."""
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


def list_changes(last: Tree, settings: Settings) -> list[str]:
    """Return a line for each setting that differs from the settings that a run used last.

    Args:
        last: Settings that the run used last; empty if they are not known, which gives no line.
        settings: Settings of the run's config.yaml, which may have been edited, with the command line on top.

    Raises:
        UserError: A change is not possible, or has no effect.
    """
    if not last:
        return []
    lines = _list_section_changes(last, settings.tree, settings, "")
    old_roles, new_roles = last.get("ma_config") or {}, settings.tree["ma_config"]
    for role in {**old_roles, **new_roles}:
        old, new = old_roles.get(role) or {}, new_roles.get(role) or {}
        lines += _list_section_changes(old, new, settings.for_role(role), f"ma_config.{role}.")
    return lines


def _list_section_changes(old: Mapping[str, Any], new: Mapping[str, Any], settings: Settings, prefix: str) -> list[str]:
    """Return a line for each difference between two trees, without the sections of roles."""
    lines = []
    for path, before, after in find_changes({**old, "ma_config": {}}, {**new, "ma_config": {}}):
        line = f"{prefix}{path}: {_format_value(before)} -> {_format_value(after)}"
        for note, owner in iterate_annotations(settings, path):
            if isinstance(note, FixedOnResume) and note.forbids(before, after, owner):
                raise UserError(f"{line} is not possible with --resume: {note.reason}; train a new run instead")
        # A null may mean that an older version of this program, without this setting, wrote the settings.
        if before is not None and (failure := find_failure(settings, path)):
            raise UserError(f"{line} {failure}")
        lines.append(line)
    return lines


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old and new value of every setting that differs.

    A missing setting has the value null; words match without case.
    """
    for key in {**old, **new}:
        path, before, after = f"{prefix}{key}", old.get(key), new.get(key)
        if all(value is None or isinstance(value, Mapping) for value in (before, after)):
            yield from find_changes(before or {}, after or {}, f"{path}.")
        elif _fold_case(before) != _fold_case(after):
            yield path, before, after


def _fold_case(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write_roles(path: Path, roles: Mapping[str, Role]) -> None:
    """Write the roles of a run as JSON."""
    write_json(path, {name: asdict(role) for name, role in roles.items()}, is_sealed=True)


def read_roles(path: Path) -> Mapping[str, Role]:
    """Return the roles in a file; empty if it does not exist. Raises UserError if it cannot be read."""
    try:
        return read_json(path, dict[str, Role]) or {}
    except RecordError as error:
        raise UserError(f"{error}, or of another version of this program: --resume writes it again") from error


def check_specs(run: Path, before: Role, now: Role) -> None:
    """Raise UserError if the observations or actions of a role differ from before; its number of lanes may differ."""
    if (before.obs_specs, before.action_spec) != (now.obs_specs, now.action_spec):
        raise UserError(
            f"{run} was created for {_describe_specs(before)}; the environment has {_describe_specs(now)}: "
            "train a new run"
        )


def _describe_specs(role: Role) -> str:
    observed = ", ".join(
        f"{name} {list(spec.shape)}{f' of {list(spec.env_shape)}' if spec.env_shape is not None else ''} {spec.dtype}"
        for name, spec in role.obs_specs.items()
    )
    return f"observations {observed}, actions {role.action_spec}"
