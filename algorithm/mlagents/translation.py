"""One behavior of a trainer configuration as the files of an environment folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithm.config.loader import Tree, defaults, merge
from algorithm.config.yaml_text import commented, dump
from algorithm.errors import UserError
from algorithm.mlagents.environment import Parameters
from algorithm.mlagents.mapping import BEHAVIOR, IGNORING, MEMORY, RUN
from algorithm.mlagents.network import nn_file
from algorithm.mlagents.rules import KEEP, Becomes, Lost, NotServed, Refused, Row, Rows
from algorithm.mlagents.trainer_config import Entry, Given, nearest
from algorithm.mlagents.trainers import TRAINERS

NO_REWARD = "what is learned from is the scene's reward, which this file does not use"


def given_of(path: Path, behavior: str, entries: Mapping[str, Entry]) -> Given:
    """All that is said of a behavior, under the rows of its trainer. Raises UserError for a trainer there is not."""
    told = entries.get("trainer_type", Entry(None, "ppo"))
    trainer = str(told.value)
    if trainer not in TRAINERS:
        raise UserError(f"{path}: {told.key} is {told.value!r}; there is {', '.join(TRAINERS)}")
    if "trainer_type" not in entries and Given.has("hyperparameters", entries):
        raise UserError(f"{path}: {behavior} has hyperparameters and no trainer_type, which ML-Agents requires then")
    entries = dict(entries)
    if Given.has(MEMORY, entries) or MEMORY in entries:  # ML-Agents' defaults of one that is there
        entries.setdefault(f"{MEMORY}.memory_size", Entry(None, 128))
        entries.setdefault(f"{MEMORY}.sequence_length", Entry(None, 64))
    given = Given(str(path), trainer, rows_of(trainer), entries)
    length, batch = given.value(f"{MEMORY}.sequence_length"), given.value("hyperparameters.batch_size")
    if length and length > (batch or TRAINERS[trainer].batch_size):
        raise UserError(
            f"{path}: {behavior} has a sequence_length of {length} and a batch_size of "
            f"{batch or TRAINERS[trainer].batch_size}; ML-Agents requires a batch of at least one sequence"
        )
    return given


def rows_of(trainer: str) -> Rows:
    """What becomes of every key of a behavior with this trainer, and of the run."""
    own: dict[str, Row] = dict(TRAINERS[trainer].rows)
    for other, elsewhere in TRAINERS.items():
        for key in elsewhere.rows:
            own.setdefault(key, Refused(f"it is of {other}, not of {trainer}"))
    return {**RUN, **BEHAVIOR, **{f"hyperparameters.{key}": row for key, row in own.items()}}


class Translation:
    """Settings that differ from our defaults, each with a comment and its origin, and what has no counterpart."""

    def __init__(self, given: Given, behavior: str, parameters: Parameters):
        self.given, self.behavior, self.parameters = given, behavior, parameters
        self.trainer = TRAINERS[given.trainer]
        self.section = f"{self.trainer.algorithm.lower()}_config"
        self.tree: Tree = {}
        self.comments: dict[str, str] = {}
        self.origin: dict[str, str] = {}  # keys of the file by the settings they became
        self.lost: dict[str, str] = {}
        self._defaults = defaults()
        self._set("base_config.env_type", "UNITY")
        self._set("base_config.env_name", behavior, "what it is called; the scene is build_path's")
        self._write("base_config.algorithm", self.trainer.algorithm, f"{given.trainer} there")
        self._write("base_config.unity_args.build_path", "editor")
        for path in [*given.rows, *(path for path in given.entries if path not in given.rows)]:
            if path in given.entries:
                self._translate(path)
        for key, (value, why) in self.trainer.begin(given).items():
            self._set(f"{self.section}.{key}", value, why)
        if Given.has("reward_signals", given.entries) and not Given.has("reward_signals.extrinsic", given.entries):
            self.lost[f"behaviors.{behavior}.reward_signals"] = NO_REWARD

    def config(self, source: str, name: str) -> str:
        """The text of its config.yaml."""
        lines = [f"# {self.behavior!r} of {source}, a trainer configuration of ML-Agents: python main.py {name}"]
        lines += [
            "#",
            "# Every setting stands in default_config.yaml; these override it. Behind each is where it comes from.",
        ]
        lines += ["default:", *commented(self.tree, self.comments)]
        if self.parameters.reset_config:
            lines += _block({"reset_config": self.parameters.reset_config})
        return "\n".join(lines) + "\n"

    def nn(self, called: str) -> str:
        """The text of its nn.py."""
        return nn_file(self.given, called)

    def blamed(self, message: str, source: str) -> str:
        """What is wrong with a setting, by the key that it came from."""
        for setting, key in self.origin.items():
            if f" {setting} is " in message:
                return f"{source}: {key} becomes {message.removeprefix(f'{source}: ')}"
        return message

    def _translate(self, path: str) -> None:
        row, entry = self.given.row[path], self.given.entries[path]
        key = entry.key or path
        if row is None and path.startswith(IGNORING):
            self.lost[key] = f"ML-Agents has no such key and ignores it{nearest(path, self.given.rows)}"
        elif row is None:
            raise UserError(f"{self.given.file}: {key}: ML-Agents has no such key{nearest(path, self.given.rows)}")
        elif isinstance(row, Refused):
            raise UserError(f"{self.given.file}: {key}: {row.reason}, which ML-Agents rejects")
        elif isinstance(row, Lost):
            if self.given.value(path) not in row.unless:
                self.lost[key] = row.reason
        else:
            said = self.given.value(path)
            try:
                if isinstance(row, Becomes):
                    self._become(path, row, said)
                else:
                    row.check(said, self.given)
            except NotServed as error:
                self.lost[key] = str(error)
            except ValueError as error:
                raise self.given.wrong(path, error) from error

    def _become(self, path: str, row: Becomes, said: Any) -> None:
        entry = self.given.entries[path]
        value = row.convert(said, self.given)
        if value is not KEEP:
            comment = path if value == said else f"{path}: {said!r}"
            default = f"ML-Agents' default of {path}"
            for place in (row.setting, *row.also):
                setting = place.replace("agent.", f"{self.section}.")
                self.origin[setting] = entry.key or default
                self._set(setting, value, comment if entry.key else default)

    def _set(self, setting: str, value: Any, comment: str = "") -> None:
        """Write a setting, where it differs from our default."""
        ours: Any = self._defaults
        for part in setting.split("."):
            ours = ours[part]
        if value != ours:
            self._write(setting, value, comment)

    def _write(self, setting: str, value: Any, comment: str = "") -> None:
        branch: Any = value
        for part in reversed(setting.split(".")):
            branch = {part: branch}
        self.tree = merge(self.tree, branch)
        self.comments[setting] = comment


def _block(tree: Mapping[str, Any]) -> Iterator[str]:
    """A mapping in lines, its innermost mappings in one."""
    for line in dump(tree, default_flow_style=None, width=10**6, allow_unicode=True).splitlines():
        yield f"  {line}"
