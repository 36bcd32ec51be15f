"""One behavior of a trainer configuration as config.yaml and nn.py of an environment folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from algorithm.config.yaml_layers import (
    Layer,
    Tree,
    find_source,
    format_commented,
    format_yaml,
    load_defaults,
    merge,
    nest,
)
from algorithm.errors import UserError
from algorithm.program import get_command
from algorithm.tools.mlagents.configuration import TRAINERS, Configuration
from algorithm.tools.mlagents.keys import IGNORED, UNSET, USE_DEFAULT, To, UnsupportedValue

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


def read_configuration(file: str, behavior: str, layers: list[Layer]) -> Any:
    """Return the keys of a behavior, by the class of its trainer.

    Args:
        file: Name of the file, for messages.
        behavior: Name of the behavior.
        layers: Keys of the run, of `default_settings`, and of the behavior, each with the prefix of its keys.

    Raises:
        UserError: For an unknown trainer, and for keys, values and combinations that ML-Agents rejects.
    """
    (_, run), (_, shared), (prefix, own) = layers
    given = merge(shared, own)
    trainer, default = given.get("trainer_type", "ppo"), shared.get("trainer_type", "ppo")
    key = f"{find_source(layers, 'trainer_type')}trainer_type"
    if not isinstance(trainer, str) or trainer not in TRAINERS:
        raise UserError(f"{file}: {key} is {trainer!r}; use one of: {', '.join(TRAINERS)}")
    if shared and trainer != default and (default, trainer) != ("poca", "ppo"):
        raise UserError(
            f"{file}: {key} is {trainer!r}, but default_settings, whose hyperparameters ML-Agents passes to it, is of "
            f"{default!r}; ML-Agents rejects this"
        )
    if "trainer_type" not in given and given.get("hyperparameters"):
        raise UserError(f"{file}: {behavior} has hyperparameters and no trainer_type, which ML-Agents requires then")
    configuration = TRAINERS[trainer].read(file, layers)
    memory, batch_size = configuration.network_settings.memory, configuration.hyperparameters.batch_size
    if memory and memory.sequence_length > batch_size:
        raise UserError(
            f"{file}: {behavior} has a sequence_length of {memory.sequence_length} and a batch_size of {batch_size}; "
            "ML-Agents requires a batch of at least one sequence"
        )
    return configuration


class Translation:
    """The translation of one behavior.

    Attributes:
        behavior: Name of the behavior.
        configuration: Its keys.
        section: Section of the algorithm.
        tree: Settings that differ from Samara's defaults.
        comments: Comment of each setting in config.yaml.
        origin: For each setting, the key of the file from which it follows.
        unsupported: Keys without a counterpart, each with the reason.
    """

    def __init__(self, file: str, behavior: str, layers: list[Layer]):
        """Read and translate a behavior. Raises UserError as `read_configuration`, whose arguments these are."""
        self.behavior, self.configuration = behavior, read_configuration(file, behavior, layers)
        self.section = f"{self.configuration.algorithm.lower()}_config"
        self.tree: Tree = {}
        self.comments: dict[str, str] = {}
        self.origin: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}
        self._layers = layers
        self._set("base_config.env_type", "UNITY")
        self._set("base_config.env_name", behavior, "name of the behavior; build_path names the scene")
        self._write(
            "base_config.algorithm", self.configuration.algorithm, f"for the trainer {self.configuration.trainer}"
        )
        self._write("base_config.unity_args.build_path", "editor")
        for path, value, is_given, rule in self.configuration.iterate():
            if value is UNSET:
                continue
            if isinstance(rule, To):
                self._map(path, value, is_given, rule)
            elif rule and is_given and value not in rule.unless and rule.condition(self.configuration):
                self._report(path, value, rule.reason)
        for key, (value, why) in self.configuration.make_settings().items():
            self._set(f"{self.section}.{key}", value, why)
        signals = self.configuration.reward_signals
        if signals.model_fields_set and signals.extrinsic is None:
            self.unsupported[f"behaviors.{behavior}.reward_signals"] = NO_REWARD

    def make_config(self, source: str, name: str, reset_config: Tree) -> str:
        """Return the text of config.yaml."""
        lines = [
            f"# {self.behavior!r} of {source}, a trainer configuration of ML-Agents: {get_command()} {name}",
            "#",
            "# Settings that differ from default_config.yaml; a comment names the key from which a setting follows.",
            "default:",
            *format_commented(self.tree, self.comments),
        ]
        if reset_config:  # with innermost mappings on one line
            text = format_yaml({"reset_config": reset_config}, default_flow_style=None, width=10**6, allow_unicode=True)
            lines += [f"  {line}" for line in text.splitlines()]
        return "\n".join(lines) + "\n"

    def explain_error(self, message: str, source: str) -> str:
        """Return an error message about a setting with the key of the file from which the setting follows."""
        for setting, key in self.origin.items():
            if f" {setting} is " in message:
                return f"{source}: {key} becomes {message.removeprefix(f'{source}: ')}"
        return message

    def list_engine_notes(self) -> Iterator[str]:
        """Yield a line for each engine setting that the file leaves out and whose default differs here."""
        for path, value, _, rule in self.configuration.iterate():
            if isinstance(rule, To) and rule.engine_default is not None and value is UNSET:
                default = get_default(rule.setting)
                if default != rule.engine_default:
                    yield (
                        f"{path} is not in the file: its default in ML-Agents is {json.dumps(rule.engine_default)}, "
                        f"{rule.setting} is {json.dumps(default)}"
                    )

    def _find_key(self, path: str) -> str:
        return f"{find_source(self._layers, path)}{path}"

    def _report(self, path: str, value: Any, reason: str) -> None:
        """Record a key without a counterpart, or each key below it."""
        if isinstance(value, dict) and value:
            for name, part in value.items():
                self._report(f"{path}.{name}", part, reason)
        else:
            suggestion = self.configuration.suggest(path) if reason == IGNORED else ""
            self.unsupported[self._find_key(path)] = f"{reason}{suggestion}"

    def _map(self, path: str, given_value: Any, is_given: bool, rule: To) -> None:
        """Add the settings of a key with its value, unless it is USE_DEFAULT."""
        key = self._find_key(path) if is_given else f"ML-Agents' default of {path}"
        try:
            value = rule.convert(given_value, self.configuration)
        except UnsupportedValue as error:
            self.unsupported[key], value = str(error), error.used_value
        if value is USE_DEFAULT:
            return
        comment = path if value == given_value else f"{path}: {given_value!r}"
        for target in (rule.setting, *rule.others):
            setting = target.replace("agent.", f"{self.section}.")
            self.origin[setting] = key
            self._set(setting, value, comment if is_given else key)

    def _set(self, setting: str, value: Any, comment: str = "") -> None:
        """Add a setting, if it differs from Samara's default. By default there are no auxiliaries."""
        if value != get_default(setting):
            self._write(setting, value, comment)

    def _write(self, setting: str, value: Any, comment: str = "") -> None:
        self.tree = merge(self.tree, nest(setting, value))
        self.comments[setting] = comment


def get_default(setting: str) -> Any:
    """Return Samara's default of a setting; an empty mapping for a setting of auxiliaries."""
    default: Any = load_defaults()
    for key in setting.split("."):
        default = default.get(key, {})
    return default


def make_nn_file(configuration: Configuration, title: str) -> str:
    """Return the text of nn.py for a behavior; `title` starts its docstring."""
    network = configuration.network_settings
    image = IMAGE_ENCODERS.get(network.vis_encode_type)
    layers = max(1, network.num_layers)  # ML-Agents has at least one
    lstm_units = network.memory.memory_size // 2 if network.memory else None  # memory_size counts output and cell
    heads, names = "policy=hidden, critic=hidden", ["Mlp", "Vector"]
    if lstm_units:
        heads = f"body=hidden, memory=Lstm({lstm_units})"
        names.append("Lstm")
    elif getattr(configuration.hyperparameters, "shared_critic", False):
        heads = "body=hidden"
    if image:
        names.append(image.partition("(")[0])
    return TEMPLATE.format(
        title=title,
        layers=layers,
        units=network.hidden_units,
        separation="separate for policy and critic" if heads.startswith("policy") else "shared by policy and critic",
        memory=f", and an LSTM of {lstm_units} units" if lstm_units else "",
        names=", ".join(sorted(names)),
        vector=f"Vector(normalize={network.normalize})",
        image=f"    image = {image}\n" if image else FLAT_ENCODER,
        heads=heads,
    )
