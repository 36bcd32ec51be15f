"""An environment folder for every behavior of a trainer configuration."""

from __future__ import annotations

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
from algorithm.config.yaml_layers import read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import LOCAL_ENVS, MAX_NAME_LENGTH, is_file_name
from algorithm.parts.run_folder import RunFolder
from algorithm.tools.mlagents.environment import ParameterReader
from algorithm.tools.mlagents.keys import UNSET, Keys
from algorithm.tools.mlagents.translation import Translation, make_nn_file

FOLDERS = LOCAL_ENVS / "unity"


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
    tree = read_yaml(path)
    file = TrainerFile.read(str(path), [("", tree)])
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
    run = {
        key: value
        for key, value in tree.items()
        if key not in ("behaviors", "default_settings", "environment_parameters")
    }
    translations = {
        names[behavior]: Translation(
            str(path), behavior, [("", run), ("default_settings.", shared), (f"behaviors.{behavior}.", own)]
        )
        for behavior, own in behaviors.items()
    }
    unsupported: dict[str, str] = {}
    for translation in translations.values():
        unsupported |= translation.unsupported
    unsupported |= parameters.unsupported
    _write_folders(path, translations, parameters)
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
        name, others = plain, {other.casefold() for other in names.values()}
        count = 1
        while name.casefold() in others:
            count += 1
            name = f"{plain}-{count}"
        names[behavior] = name
    return names


def _write_folders(source: Path, translations: Mapping[str, Translation], parameters: ParameterReader) -> None:
    """Write the files of all folders, after a check that every folder can be trained."""
    files: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as draft:
        for name, translation in translations.items():
            texts = {
                "config.yaml": translation.make_config(source.name, f"unity/{name}", parameters.reset_config),
                "nn.py": make_nn_file(translation.configuration, f"{name} of {source.name}"),
            }
            folder = Path(draft, name)
            folder.mkdir()
            for file, text in texts.items():
                (folder / file).write_text(text, encoding="utf-8")
                files[FOLDERS / name / file] = text
            _check_folder(folder, translation, source)
    new_folders = [folder for name in translations if not (folder := FOLDERS / name).exists()]
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
