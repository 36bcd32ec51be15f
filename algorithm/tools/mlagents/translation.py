"""One behavior of a trainer configuration as config.yaml and nn.py of an environment folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithm.config.yaml_layers import Tree, format_commented, format_yaml, load_defaults, merge, nest
from algorithm.errors import UserError
from algorithm.program import get_command
from algorithm.tools.mlagents.environment import ParameterReader
from algorithm.tools.mlagents.mapping import BEHAVIOR, LENIENT_SECTIONS, MEMORY, RUN, SECTION_DEFAULTS
from algorithm.tools.mlagents.trainer_config import (
    USE_DEFAULT,
    Entry,
    MapsTo,
    Rejected,
    Rule,
    Rules,
    TrainerConfig,
    Unsupported,
    UnsupportedValue,
    suggest_key,
)
from algorithm.tools.mlagents.trainers import TRAINERS

NO_REWARD = "agents always learn from the reward of the scene, and this file does not use it"
TEMPLATE = '''\
"""{title}: {layers} x {units} units, {separation}{memory}."""

from algorithm.networks import Blueprint, {names}


def blueprint(units: int = {units}, layers: int = {layers}):
    """The arguments come from nn_config in config.yaml."""
    vector = {vector}
{image}
    def sensor(spec):
        """Return the encoder for the shape of a sensor, since a trainer configuration does not name sensors."""
        return (image if len(spec.shape) == 3 else vector)(spec)

    hidden = Mlp(*[units] * layers)
    return Blueprint({{"*": sensor}}, {heads})
'''
# Encoders with the layers, kernels and strides of ML-Agents' ones, by vis_encode_type.
IMAGE_ENCODERS = {
    "simple": "Conv((16, 8, 4), (32, 4, 2), units=units)",
    "nature_cnn": "NatureCnn(units)",
    "resnet": "ImpalaResNet(units=units)",
    "match3": "Conv((35, 3, 1), (144, 3, 1), units=units)",
}
FLAT_ENCODER = '''
    def image(spec):
        """Return the encoder of an image as a vector of pixels from 0 to 1."""
        return Vector(scale=1 / spec.high)(spec)
'''


def make_trainer_config(path: Path, behavior: str, entries: Mapping[str, Entry]) -> TrainerConfig:
    """Return the keys of a behavior with the rules of its trainer.

    Raises:
        UserError: For an unknown trainer, and for combinations of keys that ML-Agents rejects.
    """
    trainer_entry = entries.get("trainer_type", Entry(None, "ppo"))
    trainer = str(trainer_entry.value)
    if trainer not in TRAINERS:
        raise UserError(f"{path}: {trainer_entry.key} is {trainer_entry.value!r}; use one of: {', '.join(TRAINERS)}")
    if "trainer_type" not in entries and TrainerConfig.has_section("hyperparameters", entries):
        raise UserError(f"{path}: {behavior} has hyperparameters and no trainer_type, which ML-Agents requires then")
    entries = dict(entries)
    for section, defaults in SECTION_DEFAULTS.items():
        if TrainerConfig.has_section(section, entries) or section in entries:
            for key, value in defaults.items():
                entries.setdefault(f"{section}.{key}", Entry(None, value))
    config = TrainerConfig(str(path), trainer, collect_rules(trainer), entries)
    length, batch = config.get(f"{MEMORY}.sequence_length"), config.get("hyperparameters.batch_size")
    if length and length > (batch or TRAINERS[trainer].batch_size):
        raise UserError(
            f"{path}: {behavior} has a sequence_length of {length} and a batch_size of "
            f"{batch or TRAINERS[trainer].batch_size}; ML-Agents requires a batch of at least one sequence"
        )
    return config


def collect_rules(trainer: str) -> Rules:
    """Return the rules for all keys of a behavior with this trainer, and of the run."""
    hyperparameter_rules: dict[str, Rule] = dict(TRAINERS[trainer].rules)
    for other, other_trainer in TRAINERS.items():
        for key in other_trainer.rules:
            hyperparameter_rules.setdefault(key, Rejected(f"it is a key of {other}, not of {trainer}"))
    behavior_rules = {**BEHAVIOR, **TRAINERS[trainer].behavior_rules}
    return {**RUN, **behavior_rules, **{f"hyperparameters.{key}": rule for key, rule in hyperparameter_rules.items()}}


class Translation:
    """The translation of one behavior.

    Attributes:
        tree: Settings that differ from Samara's defaults.
        comments: Comment of each setting in config.yaml.
        origin: For each setting, the key of the file from which it follows.
        unsupported: Keys without a counterpart, each with the reason.
    """

    def __init__(self, trainer_config: TrainerConfig, behavior: str, parameters: ParameterReader):
        self.trainer_config, self.behavior, self.parameters = trainer_config, behavior, parameters
        self.trainer = TRAINERS[trainer_config.trainer]
        self.section = f"{self.trainer.algorithm.lower()}_config"
        self.tree: Tree = {}
        self.comments: dict[str, str] = {}
        self.origin: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}
        self._defaults = load_defaults()
        self._set("base_config.env_type", "UNITY")
        self._set("base_config.env_name", behavior, "name of the behavior; build_path names the scene")
        self._write("base_config.algorithm", self.trainer.algorithm, f"for the trainer {trainer_config.trainer}")
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
        """Return the text of config.yaml."""
        lines = [f"# {self.behavior!r} of {source}, a trainer configuration of ML-Agents: {get_command()} {name}"]
        lines += [
            "#",
            "# Settings that differ from default_config.yaml; a comment names the key from which a setting follows.",
        ]
        lines += ["default:", *format_commented(self.tree, self.comments)]
        if self.parameters.reset_config:
            lines += _format_block({"reset_config": self.parameters.reset_config})
        return "\n".join(lines) + "\n"

    def make_nn(self, title: str) -> str:
        """Return the text of nn.py; `title` starts its docstring."""
        return make_nn_file(self.trainer_config, title)

    def explain_error(self, message: str, source: str) -> str:
        """Return an error message about a setting with the key of the file from which the setting follows."""
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
            suggestion = suggest_key(path, self.trainer_config.rules)
            raise UserError(f"{self.trainer_config.file}: {key}: ML-Agents has no such key{suggestion}")
        elif isinstance(rule, Rejected):
            raise UserError(f"{self.trainer_config.file}: {key}: {rule.reason}, which ML-Agents rejects")
        elif isinstance(rule, Unsupported):
            if self.trainer_config.get(path) not in rule.supported_values:
                self.unsupported[key] = rule.reason
        else:
            given_value = self.trainer_config.get(path)
            try:
                if isinstance(rule, MapsTo):
                    self._map(path, rule, given_value, rule.convert(given_value, self.trainer_config))
                else:
                    rule.check(given_value, self.trainer_config)
            except UnsupportedValue as error:
                self.unsupported[key] = str(error)
                if isinstance(rule, MapsTo):
                    self._map(path, rule, given_value, error.used_value)
            except ValueError as error:
                raise self.trainer_config.make_error(path, error) from error

    def _map(self, path: str, rule: MapsTo, given_value: Any, value: Any) -> None:
        """Add the settings of a rule with a value, unless it is USE_DEFAULT."""
        entry = self.trainer_config.entries[path]
        if value is not USE_DEFAULT:
            comment = path if value == given_value else f"{path}: {given_value!r}"
            default = f"ML-Agents' default of {path}"
            for target in (rule.setting, *rule.other_settings):
                setting = target.replace("agent.", f"{self.section}.")
                self.origin[setting] = entry.key or default
                self._set(setting, value, comment if entry.key else default)

    def _set(self, setting: str, value: Any, comment: str = "") -> None:
        """Add a setting, if it differs from Samara's default. By default there are no auxiliaries."""
        default_value: Any = self._defaults
        for part in setting.split("."):
            default_value = default_value.get(part, {})
        if value != default_value:
            self._write(setting, value, comment)

    def _write(self, setting: str, value: Any, comment: str = "") -> None:
        self.tree = merge(self.tree, nest(setting, value))
        self.comments[setting] = comment


def _format_block(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a mapping, with innermost mappings on one line."""
    for line in format_yaml(tree, default_flow_style=None, width=10**6, allow_unicode=True).splitlines():
        yield f"  {line}"


def make_nn_file(config: TrainerConfig, title: str) -> str:
    """Return the text of nn.py for a behavior; `title` starts its docstring."""
    visual = config.get("network_settings.vis_encode_type", "simple")
    image = IMAGE_ENCODERS.get(visual)
    units = config.get("network_settings.hidden_units", 128)
    layers = max(1, config.get("network_settings.num_layers", 2))  # ML-Agents has at least one
    # ML-Agents' memory_size counts output and cell of the LSTM.
    lstm_units = config.get(f"{MEMORY}.memory_size") // 2 if f"{MEMORY}.memory_size" in config.entries else None
    shared = config.trainer == "ppo" and config.get("hyperparameters.shared_critic", False)
    heads, names = "policy=hidden, critic=hidden", ["Mlp", "Vector"]
    if lstm_units:
        heads = f"body=hidden, memory=Lstm({lstm_units})"
        names.append("Lstm")
    elif shared:
        heads = "body=hidden"
    if image:
        names.append(image.partition("(")[0])
    return TEMPLATE.format(
        title=title,
        layers=layers,
        units=units,
        separation="separate for policy and critic" if heads.startswith("policy") else "shared by policy and critic",
        memory=f", and an LSTM of {lstm_units} units" if lstm_units else "",
        names=", ".join(sorted(names)),
        vector=f"Vector(normalize={config.get('network_settings.normalize', False)})",
        image=f"    image = {image}\n" if image else FLAT_ENCODER,
        heads=heads,
    )
