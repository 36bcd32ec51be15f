"""An environment folder for every behavior of a trainer configuration."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithm.atomic_io import replace_text
from algorithm.config.loader import resolve
from algorithm.config.variants import read_variant
from algorithm.config.yaml_layers import Tree, load_defaults, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import LOCAL_ENVS, MAX_NAME_LENGTH, is_file_name
from algorithm.parts.run_folder import RunFolder
from algorithm.tools.mlagents.environment import ParameterReader
from algorithm.tools.mlagents.mapping import RUN, WITHOUT_VALUE
from algorithm.tools.mlagents.trainer_config import Entry, MapsTo, iterate_entries, merge_entries, suggest_key
from algorithm.tools.mlagents.translation import Translation, make_trainer_config

ENV_GROUP = "unity"
SECTIONS = ("env_settings", "engine_settings", "torch_settings", "checkpoint_settings")
TOP_KEYS = ("behaviors", "default_settings", "environment_parameters", *SECTIONS, "debug")


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
    tree = read_yaml(path)
    if unknown := [str(key) for key in tree if key not in TOP_KEYS]:
        raise UserError(
            f"{path}: {unknown[0]}: ML-Agents has no such key{suggest_key(unknown[0], dict.fromkeys(TOP_KEYS))}"
        )
    behaviors, unnamed = _read_section(path, tree, "behaviors"), _read_section(path, tree, "default_settings")
    if not behaviors and unnamed:
        behaviors = {path.stem: {}}
    parameters = ParameterReader(str(path), _read_section(path, tree, "environment_parameters"))
    if not behaviors:
        raise UserError(
            f"{path}: there is no `behaviors` and no `default_settings`: a trainer configuration lists its behaviors "
            "under one of them"
        )
    names = choose_folder_names(behaviors)
    if existing := [name for name in names.values() if (LOCAL_ENVS / ENV_GROUP / name).exists() and not force]:
        raise UserError(f"{LOCAL_ENVS / ENV_GROUP / existing[0]} exists already; --force replaces it")
    unsupported: dict[str, str] = {}
    translations = {
        names[behavior]: Translation(make_trainer_config(path, behavior, entries), behavior, parameters)
        for behavior, entries in _read_behaviors(path, tree, behaviors)
    }
    for translation in translations.values():
        unsupported |= translation.unsupported
    unsupported |= parameters.unsupported
    _write_folders(path, translations, names)
    folders = [LOCAL_ENVS / ENV_GROUP / name for name in translations]
    notes = [*_list_notes(path, names, parameters, translations.values())]
    if not tree.get("behaviors"):
        notes.insert(0, f"default_settings: they apply to any behavior; {folders[0]} has the name of the file")
    return ImportResult(folders, unsupported, notes)


def choose_folder_names(behaviors: Mapping[str, Any]) -> dict[str, str]:
    """Return a folder name for each behavior that is valid on every system, and unique without regard to case."""
    names: dict[str, str] = {}
    for behavior in behaviors:
        plain = re.sub(r"[^\w.-]", "_", behavior)[: MAX_NAME_LENGTH - 4].strip(".") or "_"
        plain = plain if is_file_name(plain) else f"_{plain}"
        name, others = plain, {other.casefold() for other in names.values()}
        count = 1
        while name.casefold() in others:
            count += 1
            name = f"{plain}-{count}"
        names[behavior] = name
    return names


def _read_section(path: Path, tree: Tree, key: str) -> dict[str, Any]:
    """Return a section of the file; empty if it is missing."""
    section = tree.get(key)
    if not isinstance(section, Mapping | None):
        raise UserError(f"{path}: {key} is {section!r}; it must be a mapping")
    return {str(name): value for name, value in (section or {}).items()}


def _read_behaviors(path: Path, tree: Tree, behaviors: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Yield each behavior with the entries of the file that apply to it, including the entries for the run."""
    run = {key: tree[key] for key in SECTIONS + ("debug",) if key in tree}
    shared = dict(iterate_entries("", run)) | dict(
        iterate_entries("default_settings.", _read_section(path, tree, "default_settings"))
    )
    for behavior, settings in behaviors.items():
        if not isinstance(settings, Mapping):
            raise UserError(f"{path}: behaviors.{behavior} is {settings!r}; it must be a mapping of its settings")
        behavior_entries = dict(iterate_entries(f"behaviors.{behavior}.", settings))
        for name, entry in {**shared, **behavior_entries}.items():
            if entry.value is None and name not in WITHOUT_VALUE:
                raise UserError(f"{path}: {entry.key} has no value, which ML-Agents requires")
        _check_trainer(path, shared, behavior_entries)
        yield behavior, merge_entries({}, merge_entries(shared, behavior_entries))


def _check_trainer(path: Path, shared: Mapping[str, Entry], own: Mapping[str, Entry]) -> None:
    """Raise UserError for a trainer to which ML-Agents would pass the hyperparameters of another one."""
    if not any((entry.key or "").startswith("default_settings.") for entry in shared.values()):
        return
    default = shared.get("trainer_type", Entry(None, "ppo")).value
    if "trainer_type" in own and own["trainer_type"].value not in (default, *{"poca": ["ppo"]}.get(default, [])):
        raise UserError(
            f"{path}: {own['trainer_type'].key} is {own['trainer_type'].value!r}, but default_settings, whose "
            f"hyperparameters ML-Agents passes to it, is of {default!r}; ML-Agents rejects this"
        )


def _write_folders(source: Path, translations: Mapping[str, Translation], names: Mapping[str, str]) -> None:
    """Write the files of all folders, after a check that every folder can be trained."""
    files: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as draft:
        for name, translation in translations.items():
            texts = {
                "config.yaml": translation.make_config(source.name, f"{ENV_GROUP}/{name}"),
                "nn.py": translation.make_nn(f"{name} of {source.name}"),
            }
            folder = Path(draft, name)
            folder.mkdir()
            for file, text in texts.items():
                (folder / file).write_text(text, encoding="utf-8")
                files[LOCAL_ENVS / ENV_GROUP / name / file] = text
            _check_folder(folder, translation, source)
    new_folders = [folder for name in translations if not (folder := LOCAL_ENVS / ENV_GROUP / name).exists()]
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, text)
    except BaseException:  # a full disk, or Ctrl-C
        for folder in new_folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_folder(folder: Path, translation: Translation, source: Path) -> None:
    """Raise UserError, with the key of `source`, for settings that cannot be trained."""
    try:
        settings = resolve([(str(source), read_variant(folder / "config.yaml", "default"))])
    except UserError as error:
        raise UserError(translation.explain_error(str(error), str(source))) from error
    RunFolder(folder).load_blueprint(settings.base.nn, settings.nn)


def _list_default_notes(translation: Translation) -> Iterator[str]:
    """Yield a line for each engine setting that the file leaves out and whose default differs here."""
    default_value: Any
    for path, rule in RUN.items():
        if (
            isinstance(rule, MapsTo)
            and rule.mlagents_default is not None
            and path not in translation.trainer_config.entries
        ):
            default_value = load_defaults()
            for part in rule.setting.split("."):
                default_value = default_value[part]
            if default_value != rule.mlagents_default:
                mlagents_text, default_text = json.dumps(rule.mlagents_default), json.dumps(default_value)
                yield (
                    f"{path} is not in the file: its default in ML-Agents is {mlagents_text}, "
                    f"{rule.setting} is {default_text}"
                )


def _list_notes(
    path: Path, names: Mapping[str, str], parameters: ParameterReader, translations: Collection[Translation]
) -> Iterator[str]:
    """Yield further lines for the user."""
    yield from _list_default_notes(next(iter(translations)))
    for translation in translations:
        yield f"behaviors.{translation.behavior}.trainer_type: {translation.trainer.note}"
    for behavior, name in names.items():
        if behavior != name:
            yield f"behaviors.{behavior}: its folder is {name}; the role has the name of the behavior"
    for key, behavior in parameters.measured_behaviors.items():
        if behavior not in names:
            yield f"{key}: {behavior} is no behavior of {path}; without one the lesson never ends"
    if len(names) > 1:
        first, *others = translations
        run = f"{ENV_GROUP}/{names[first.behavior]}"
        for other in others:
            same_run = f"a scene that has {other.behavior}, too, trains it in the same run: {run} by the "
            if other.section != first.section:
                yield f"{same_run}algorithm of {first.behavior}, since a run has one algorithm"
                continue
            yield (
                f"{same_run}settings and the network of {first.behavior}, unless ma_config.{other.behavior} there "
                f"holds the {other.section} and replay_config of {ENV_GROUP}/{names[other.behavior]}, and "
                "base_config.nn a copy of its nn.py by another name"
            )
        yield "base_config.max_step, and so progress, counts the decisions of all behaviors of a scene together"
