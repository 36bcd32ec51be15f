"""Environment folders for the behaviors of a trainer configuration: config.yaml and nn.py of each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from algorithm.adapters.curriculum import MultiRange, Uniform
from algorithm.atomic_io import replace_text
from algorithm.config.loader import resolve
from algorithm.config.parameters import Parameter, read_parameters
from algorithm.config.yaml_layers import (
    Layer,
    Tree,
    find_source,
    find_value,
    format_commented,
    format_yaml,
    load_defaults,
    merge,
    nest,
    read_yaml,
)
from algorithm.errors import UserError
from algorithm.parts.env_folder import LOCAL_ENVS, MAX_NAME_LENGTH, is_file_name
from algorithm.program import get_command
from algorithm.tools.mlagents.configuration import TRAINERS, Configuration
from algorithm.tools.mlagents.keys import IGNORED, UNSET, USE_DEFAULT, Keys, To, UnsupportedValue, make_integer

FOLDERS = LOCAL_ENVS / "unity"
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

# Parameters of each sampler, and keys of completion_criteria, with ML-Agents' defaults.
SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "constant": {"value": 0.0},
    "uniform": {"min_value": 0.0, "max_value": 1.0},
    "gaussian": {"mean": 1.0, "st_dev": 1.0},
    "multirangeuniform": {"intervals": [[0.0, 1.0]]},
}
CRITERIA: Mapping[str, Any] = {"measure": "reward", "behavior": None, "min_lesson_length": 1, "threshold": 0.0}
LOST_CRITERIA = {
    "signal_smoothing": "the measure is the plain mean of the last min_lesson_length episodes of the lesson",
    "require_reset": "a lesson begins with the next episode of each agent; running episodes continue",
}


class TrainerFile(Keys):
    """The keys of a trainer configuration."""

    behaviors: dict[Any, dict[Any, Any]] | None = UNSET
    default_settings: dict[Any, Any] | None = UNSET
    environment_parameters: dict[Any, Any] | None = UNSET
    env_settings: Any = UNSET
    engine_settings: Any = UNSET
    torch_settings: Any = UNSET
    checkpoint_settings: Any = UNSET
    debug: Any = UNSET


@dataclass(frozen=True)
class ImportResult:
    """The folders that were written, the reasons for keys without a counterpart, and further lines for the user."""

    folders: list[Path]
    unsupported: Mapping[str, str]
    notes: list[str]


def import_file(path: Path, force: bool) -> ImportResult:
    """Write envs/unity/<behavior> for each behavior of a trainer configuration.

    A file with `default_settings` but no `behaviors` becomes one folder with the name of the file.

    Args:
        path: Trainer configuration.
        force: Whether to replace config.yaml and nn.py of folders that exist.

    Raises:
        UserError: Before anything is written, if a folder exists, or ML-Agents would reject the file, or its settings
            cannot be trained.
    """
    file = TrainerFile.read(str(path), [("", read_yaml(path))])
    shared = file.default_settings or {}
    behaviors = {str(name): keys for name, keys in (file.behaviors or {}).items()} or (
        {path.stem: {}} if shared else {}
    )
    if not behaviors:
        raise UserError(
            f"{path}: there is no `behaviors` and no `default_settings`: a trainer configuration lists its behaviors "
            "under one of them"
        )
    names = choose_folder_names(behaviors)
    if existing := [name for name in names.values() if (FOLDERS / name).exists() and not force]:
        raise UserError(f"{FOLDERS / existing[0]} exists already; --force replaces it")
    parameters = ParameterReader(str(path), file.environment_parameters or {})
    run = file.model_dump(exclude={"behaviors", "default_settings", "environment_parameters"}, exclude_unset=True)
    translations = {
        names[behavior]: Translation(
            str(path), behavior, [("", run), ("default_settings.", shared), (f"behaviors.{behavior}.", own)]
        )
        for behavior, own in behaviors.items()
    }
    unsupported: dict[str, str] = {}
    files: dict[Path, str] = {}
    for name, translation in translations.items():
        unsupported |= translation.unsupported
        translation.check(str(path), parameters.reset_config)
        config = translation.make_config(path.name, f"unity/{name}", parameters.reset_config)
        files[FOLDERS / name / "config.yaml"] = config
        files[FOLDERS / name / "nn.py"] = make_nn_file(translation.configuration, f"{name} of {path.name}")
    unsupported |= parameters.unsupported
    _write_folders(files)
    folders = [FOLDERS / name for name in translations]
    notes = [*_list_notes(path, names, parameters, translations.values())]
    if not file.behaviors:
        notes.insert(0, f"default_settings: they apply to any behavior; {folders[0]} has the name of the file")
    return ImportResult(folders, unsupported, notes)


def choose_folder_names(behaviors: Mapping[str, Any]) -> dict[str, str]:
    """Return a folder name for each behavior that is valid on every system, and unique without regard to case."""
    names: dict[str, str] = {}
    for behavior in behaviors:
        plain = re.sub(r"[^\w.-]", "_", behavior)[: MAX_NAME_LENGTH - 4].strip(".") or "_"
        plain = plain if is_file_name(plain) else f"_{plain}"
        others = {other.casefold() for other in names.values()}
        numbered = (f"{plain}-{number}" for number in count(2))
        names[behavior] = next(name for name in chain([plain], numbered) if name.casefold() not in others)
    return names


def _write_folders(files: Mapping[Path, str]) -> None:
    """Write the files, or remove the new folders if that fails."""
    new_folders = {path.parent for path in files if not path.parent.exists()}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, text)
    except BaseException:  # a full disk, or Ctrl-C
        for folder in new_folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _list_notes(
    path: Path, names: Mapping[str, str], parameters: ParameterReader, translations: Collection[Translation]
) -> Iterator[str]:
    """Yield further lines for the user."""
    yield from next(iter(translations)).list_engine_notes()
    for translation in translations:
        yield f"behaviors.{translation.behavior}.trainer_type: {translation.configuration.note}"
    for behavior, name in names.items():
        if behavior != name:
            yield f"behaviors.{behavior}: its folder is {name}; the role has the name of the behavior"
    for key, behavior in parameters.measured_behaviors.items():
        if behavior not in names:
            yield f"{key}: {behavior} is no behavior of {path}; without one the lesson never ends"
    if len(names) > 1:
        first, *others = translations
        run = f"unity/{names[first.behavior]}"
        for other in others:
            same_run = f"a scene that has {other.behavior}, too, trains it in the same run: {run} by the "
            if other.section != first.section:
                yield f"{same_run}algorithm of {first.behavior}, since a run has one algorithm"
                continue
            yield (
                f"{same_run}settings and the network of {first.behavior}, unless ma_config.{other.behavior} there "
                f"holds the {other.section} and replay_config of unity/{names[other.behavior]}, and "
                "base_config.nn a copy of its nn.py by another name"
            )
        yield "base_config.max_step, and so progress, counts the decisions of all behaviors of a scene together"


def read_configuration(file: str, behavior: str, layers: list[Layer]) -> Any:
    """Return the keys of a behavior, by the class of its trainer.

    Args:
        file: Name of the file, for messages.
        behavior: Name of the behavior.
        layers: Keys of the run, of `default_settings`, and of the behavior, each with the prefix of its keys.

    Raises:
        UserError: For an unknown trainer, and for keys, values and combinations that ML-Agents rejects.
    """
    _, (_, shared), (_, own) = layers
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
            self._set(f"{self.section}.reward_scale", 0.0, "the file does not use the reward of the scene")
        if (self_play := self.configuration.self_play) is not None:
            self._set("opponent_config.opponents", ["past"], "self_play: earlier versions of the agents")
            if self_play.team_change is UNSET:
                self._set("opponent_config.team_change", 5 * self_play.save_steps, "ML-Agents' default: 5 save_steps")
        if signals.gail:
            self._set("auxiliaries.gail.reward", "positive", "as in the trainer")

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

    def check(self, source: str, reset_config: Tree) -> None:
        """Raise UserError, with the key of the file `source`, for settings that cannot be trained."""
        try:
            resolve([(source, {**self.tree, "reset_config": reset_config})])
        except UserError as error:
            for setting, key in self.origin.items():
                if f" {setting} is " in str(error):
                    raise UserError(f"{source}: {key} becomes {str(error).removeprefix(f'{source}: ')}") from error
            raise

    def list_engine_notes(self) -> Iterator[str]:
        """Yield a line for each engine setting that the file leaves out and whose default differs here."""
        for path, value, _, rule in self.configuration.iterate():
            if isinstance(rule, To) and rule.engine_default is not None and value is UNSET:
                default = find_value(load_defaults(), rule.setting)
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
            value = error.used_value
            if is_given:
                self.unsupported[key] = str(error)
        if value is USE_DEFAULT:
            return
        comment = path if value == given_value else f"{path}: {given_value!r}"
        for target in (rule.setting, *rule.others):
            setting = target.replace("agent.", f"{self.section}.")
            self.origin[setting] = key
            self._set(setting, value, comment if is_given else key)

    def _set(self, setting: str, value: Any, comment: str = "") -> None:
        """Add a setting, if it differs from Samara's default. By default there are no auxiliaries."""
        if value != find_value(load_defaults(), setting):
            self._write(setting, value, comment)

    def _write(self, setting: str, value: Any, comment: str = "") -> None:
        self.tree = merge(self.tree, nest(setting, value))
        self.comments[setting] = comment


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


class ParameterReader:
    """A reader of `environment_parameters`.

    Attributes:
        reset_config: The parameters in the grammar of `reset_config`.
        unsupported: Keys without a counterpart, each with the reason.
        measured_behaviors: For each `completion_criteria.behavior`, the behavior whose episodes end the lesson.
    """

    def __init__(self, file: str, tree: Mapping[str, Any]):
        """Read the section `tree`. Raise UserError, with `file` and key, for values that ML-Agents would reject."""
        self.unsupported: dict[str, str] = {}
        self.measured_behaviors: dict[str, str] = {}
        self.reset_config = {
            str(name): self._convert_parameter(f"environment_parameters.{name}", value) for name, value in tree.items()
        }
        try:
            for name, parameter in read_parameters(self.reset_config, max_step=1).items():
                for low, high in _list_ranges(parameter):
                    if low > high:
                        raise UserError(f"environment_parameters.{name}: {low} is above {high}")
        except UserError as error:
            line = str(error).replace("reset_config.", "environment_parameters.", 1)
            raise UserError(f"{file}: {line}") from error

    def _convert_parameter(self, key: str, given: Any) -> Any:
        """Return a parameter with ML-Agents' defaults; what is not valid is unchanged."""
        if not isinstance(given, Mapping) or not isinstance(lessons := given.get("curriculum"), list) or len(given) > 1:
            return self._convert_value(key, given)
        converted = [
            self._convert_lesson(f"{key}.curriculum[{k}]", lesson, k == len(lessons) - 1)
            for k, lesson in enumerate(lessons)
        ]
        is_single = len(converted) == 1 and isinstance(converted[0], Mapping) and "value" in converted[0]
        return converted[0]["value"] if is_single else {"curriculum": converted}

    def _convert_lesson(self, key: str, given: Any, last: bool) -> Any:
        if not isinstance(given, Mapping):
            return given
        lesson = dict(given)
        if "value" in lesson:
            lesson["value"] = self._convert_value(f"{key}.value", lesson["value"])
        criteria_key = f"{key}.completion_criteria"
        if last and lesson.pop("completion_criteria", None) is not None:
            self.unsupported[criteria_key] = "the last lesson does not end, as in ML-Agents"
        elif isinstance(criteria := lesson.get("completion_criteria"), Mapping):
            lesson["completion_criteria"] = self._convert_criteria(criteria_key, criteria)
        return lesson

    def _convert_criteria(self, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            is_lost = (
                name in LOST_CRITERIA and value and (name, given.get("measure")) != ("signal_smoothing", "progress")
            )
            if is_lost or name not in (*CRITERIA, *LOST_CRITERIA):
                self.unsupported[f"{key}.{name}"] = LOST_CRITERIA.get(name, IGNORED)
        criteria = {name: default if given.get(name) is None else given[name] for name, default in CRITERIA.items()}
        criteria["min_lesson_length"] = make_integer(criteria["min_lesson_length"]) or 1
        if criteria["behavior"] is None:
            del criteria["behavior"]
        else:
            self.measured_behaviors[f"{key}.behavior"] = criteria["behavior"] = str(criteria["behavior"])
        return criteria

    def _convert_value(self, key: str, given: Any) -> Any:
        if not isinstance(given, Mapping) or not {"sampler_type", "sampler_parameters"} <= set(given):
            return given
        kind, given_parameters = given["sampler_type"], given["sampler_parameters"] or {}
        self.unsupported |= {f"{key}.{name}": IGNORED for name in list(given) if not name.startswith("sampler_")}
        parameters = given_parameters
        if isinstance(given_parameters, Mapping):
            known = {name: value for name, value in given_parameters.items() if value is not None}
            parameters = {**SAMPLERS.get(str(kind), {}), **known}
            if parameters.pop("seed", None) is not None:
                self.unsupported[f"{key}.sampler_parameters.seed"] = "Unity samples with the seed of the run"
            if kind == "constant" and set(parameters) == {"value"}:
                return parameters["value"]
        return {"sampler_type": kind, "sampler_parameters": parameters}


def _list_ranges(parameter: Parameter) -> Iterator[Sequence[float]]:
    """Yield the limits of each uniform distribution of a parameter."""
    for value in [lesson.value for lesson in parameter] if isinstance(parameter, tuple) else [parameter]:
        if isinstance(value, Uniform):
            yield value.min_value, value.max_value
        elif isinstance(value, MultiRange):
            yield from value.intervals
