"""One behavior of a trainer configuration as the files of an environment folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithm.config.loader import Tree, load_defaults, merge
from algorithm.config.yaml_text import dump, format_commented
from algorithm.errors import UserError
from algorithm.mlagents.environment import EnvironmentParameters
from algorithm.mlagents.mapping import BEHAVIOR, LENIENT_SECTIONS, MEMORY, RUN
from algorithm.mlagents.network import make_nn_file
from algorithm.mlagents.rules import USE_DEFAULT, MapsTo, Rejected, Rule, Rules, Unsupported, UnsupportedValue
from algorithm.mlagents.trainer_config import Entry, TrainerConfig, suggest_key
from algorithm.mlagents.trainers import TRAINERS

NO_REWARD = "what is learned from is the scene's reward, which this file does not use"


def make_trainer_config(path: Path, behavior: str, entries: Mapping[str, Entry]) -> TrainerConfig:
    """All that is said of a behavior, under the rows of its trainer. Raises UserError for a trainer there is not."""
    trainer_entry = entries.get("trainer_type", Entry(None, "ppo"))
    trainer = str(trainer_entry.value)
    if trainer not in TRAINERS:
        raise UserError(f"{path}: {trainer_entry.key} is {trainer_entry.value!r}; there is {', '.join(TRAINERS)}")
    if "trainer_type" not in entries and TrainerConfig.has_section("hyperparameters", entries):
        raise UserError(f"{path}: {behavior} has hyperparameters and no trainer_type, which ML-Agents requires then")
    entries = dict(entries)
    if TrainerConfig.has_section(MEMORY, entries) or MEMORY in entries:  # ML-Agents' defaults of one that is there
        entries.setdefault(f"{MEMORY}.memory_size", Entry(None, 128))
        entries.setdefault(f"{MEMORY}.sequence_length", Entry(None, 64))
    config = TrainerConfig(str(path), trainer, collect_rules(trainer), entries)
    length, batch = config.get(f"{MEMORY}.sequence_length"), config.get("hyperparameters.batch_size")
    if length and length > (batch or TRAINERS[trainer].batch_size):
        raise UserError(
            f"{path}: {behavior} has a sequence_length of {length} and a batch_size of "
            f"{batch or TRAINERS[trainer].batch_size}; ML-Agents requires a batch of at least one sequence"
        )
    return config


def collect_rules(trainer: str) -> Rules:
    """What becomes of every key of a behavior with this trainer, and of the run."""
    hyperparameter_rules: dict[str, Rule] = dict(TRAINERS[trainer].rules)
    for other, other_trainer in TRAINERS.items():
        for key in other_trainer.rules:
            hyperparameter_rules.setdefault(key, Rejected(f"it is of {other}, not of {trainer}"))
    return {**RUN, **BEHAVIOR, **{f"hyperparameters.{key}": rule for key, rule in hyperparameter_rules.items()}}


class Translation:
    """Settings that differ from our defaults, each with a comment and its origin, and what has no counterpart."""

    def __init__(self, trainer_config: TrainerConfig, behavior: str, parameters: EnvironmentParameters):
        self.trainer_config, self.behavior, self.parameters = trainer_config, behavior, parameters
        self.trainer = TRAINERS[trainer_config.trainer]
        self.section = f"{self.trainer.algorithm.lower()}_config"
        self.tree: Tree = {}
        self.comments: dict[str, str] = {}
        self.origin: dict[str, str] = {}  # keys of the file by the settings they became
        self.unsupported: dict[str, str] = {}
        self._defaults = load_defaults()
        self._set("base_config.env_type", "UNITY")
        self._set("base_config.env_name", behavior, "what it is called; the scene is build_path's")
        self._write("base_config.algorithm", self.trainer.algorithm, f"{trainer_config.trainer} there")
        self._write("base_config.unity_args.build_path", "editor")
        for path in [
            *trainer_config.rules,
            *(path for path in trainer_config.entries if path not in trainer_config.rules),
        ]:
            if path in trainer_config.entries:
                self._translate(path)
        for key, (value, why) in self.trainer.make_settings(trainer_config).items():
            self._set(f"{self.section}.{key}", value, why)
        if TrainerConfig.has_section("reward_signals", trainer_config.entries) and not TrainerConfig.has_section(
            "reward_signals.extrinsic", trainer_config.entries
        ):
            self.unsupported[f"behaviors.{behavior}.reward_signals"] = NO_REWARD

    def make_config(self, source: str, name: str) -> str:
        """The text of its config.yaml."""
        lines = [f"# {self.behavior!r} of {source}, a trainer configuration of ML-Agents: python main.py {name}"]
        lines += [
            "#",
            "# Every setting stands in default_config.yaml; these override it. Behind each is where it comes from.",
        ]
        lines += ["default:", *format_commented(self.tree, self.comments)]
        if self.parameters.reset_config:
            lines += _format_block({"reset_config": self.parameters.reset_config})
        return "\n".join(lines) + "\n"

    def make_nn(self, called: str) -> str:
        """The text of its nn.py."""
        return make_nn_file(self.trainer_config, called)

    def explain_error(self, message: str, source: str) -> str:
        """What is wrong with a setting, by the key that it came from."""
        for setting, key in self.origin.items():
            if f" {setting} is " in message:
                return f"{source}: {key} becomes {message.removeprefix(f'{source}: ')}"
        return message

    def _translate(self, path: str) -> None:
        rule, entry = self.trainer_config.matched_rules[path], self.trainer_config.entries[path]
        key = entry.key or path
        if rule is None and path.startswith(LENIENT_SECTIONS):
            self.unsupported[key] = (
                f"ML-Agents has no such key and ignores it{suggest_key(path, self.trainer_config.rules)}"
            )
        elif rule is None:
            raise UserError(
                f"{self.trainer_config.file}: {key}: ML-Agents has no such key{suggest_key(path, self.trainer_config.rules)}"
            )
        elif isinstance(rule, Rejected):
            raise UserError(f"{self.trainer_config.file}: {key}: {rule.reason}, which ML-Agents rejects")
        elif isinstance(rule, Unsupported):
            if self.trainer_config.get(path) not in rule.supported_values:
                self.unsupported[key] = rule.reason
        else:
            given_value = self.trainer_config.get(path)
            try:
                if isinstance(rule, MapsTo):
                    self._map(path, rule, given_value)
                else:
                    rule.check(given_value, self.trainer_config)
            except UnsupportedValue as error:
                self.unsupported[key] = str(error)
            except ValueError as error:
                raise self.trainer_config.make_error(path, error) from error

    def _map(self, path: str, rule: MapsTo, given_value: Any) -> None:
        entry = self.trainer_config.entries[path]
        value = rule.convert(given_value, self.trainer_config)
        if value is not USE_DEFAULT:
            comment = path if value == given_value else f"{path}: {given_value!r}"
            default = f"ML-Agents' default of {path}"
            for target in (rule.setting, *rule.other_settings):
                setting = target.replace("agent.", f"{self.section}.")
                self.origin[setting] = entry.key or default
                self._set(setting, value, comment if entry.key else default)

    def _set(self, setting: str, value: Any, comment: str = "") -> None:
        """Write a setting, where it differs from our default."""
        default_value: Any = self._defaults
        for part in setting.split("."):
            default_value = default_value[part]
        if value != default_value:
            self._write(setting, value, comment)

    def _write(self, setting: str, value: Any, comment: str = "") -> None:
        branch: Any = value
        for part in reversed(setting.split(".")):
            branch = {part: branch}
        self.tree = merge(self.tree, branch)
        self.comments[setting] = comment


def _format_block(tree: Mapping[str, Any]) -> Iterator[str]:
    """A mapping in lines, its innermost mappings in one."""
    for line in dump(tree, default_flow_style=None, width=10**6, allow_unicode=True).splitlines():
        yield f"  {line}"
