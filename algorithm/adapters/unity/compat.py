"""The messages and side channels of ML-Agents' own client, mlagents_envs, on current versions of protobuf.

The message classes were generated for protobuf 3.20 and older, and newer versions refuse to import them. The files
contain the descriptors of the messages as bytes, from which protobuf can build the classes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.program import get_install_command

MESSAGES = "mlagents_envs.communicator_objects"
# The names that this package uses in addition to the messages, by module.
REQUIRED_NAMES = {
    f"{MESSAGES}.unity_to_external_pb2_grpc": [
        "UnityToExternalProtoServicer",
        "add_UnityToExternalProtoServicer_to_server",
    ],
    "mlagents_envs": ["__version__"],
    "mlagents_envs.base_env": ["DimensionProperty"],
    "mlagents_envs.side_channel.engine_configuration_channel": ["EngineConfigurationChannel"],
    "mlagents_envs.side_channel.environment_parameters_channel": ["EnvironmentParametersChannel"],
    "mlagents_envs.side_channel.side_channel_manager": ["SideChannelManager"],
    "mlagents_envs.side_channel.stats_side_channel": ["StatsSideChannel"],
}


@lru_cache(maxsize=1)
def load_api() -> Any:
    """Return all messages, `REQUIRED_NAMES`, `grpc` and PIL's `Image` in one namespace.

    Afterwards, every module of `mlagents_envs` can be imported.

    Raises:
        UnsupportedEnvironment: If the package, or one that it needs, is missing.
    """
    names: dict[str, Any] = {}
    try:
        names["grpc"], names["Image"] = importlib.import_module("grpc"), importlib.import_module("PIL.Image")
        for messages in _import_messages():
            names |= {name: value for name, value in vars(messages).items() if not name.startswith("_")}
        importlib.import_module("mlagents_envs.logging_util").get_logger = _get_logger  # type: ignore[attr-defined]
        for module, wanted in REQUIRED_NAMES.items():
            names |= {name: getattr(importlib.import_module(module), name) for name in wanted}
    except ModuleNotFoundError as error:
        raise UnsupportedEnvironment(
            f"env_type UNITY needs a package that is missing ({error}): {get_install_command()}"
        ) from error
    return SimpleNamespace(**names)


def _get_logger(name: str) -> logging.Logger:
    """Replace ML-Agents' get_logger, which adds another handler at every call, and so at every unknown message."""
    logger = logging.getLogger(name)
    if not logger.filters:
        logger.addFilter(_LogOnce())
    return logger


class _LogOnce(logging.Filter):
    """A filter that passes each line once, since a scene may send messages without a receiver at every tick."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        new = line not in self._logged
        self._logged.add(line)
        return new


def _import_messages() -> list[ModuleType]:
    """Import the modules of all messages; only if that fails, rebuild all of them from their descriptors."""
    folder = Path(next(iter(importlib.import_module(MESSAGES).__path__)))
    files = sorted(folder.glob("*_pb2.py"))
    importlib.import_module("google.protobuf")
    try:
        return [importlib.import_module(f"{MESSAGES}.{file.stem}") for file in files]
    except Exception:  # TypeError, AttributeError or ImportError, depending on the version of protobuf
        modules = list(_rebuild_modules(files))
        for file, module in zip(files, modules, strict=True):
            sys.modules[module.__name__] = module
            setattr(sys.modules[MESSAGES], file.stem, module)
        return modules


def _rebuild_modules(files: list[Path]) -> Iterator[ModuleType]:
    """Yield the modules of generated files, built from the descriptors in their text."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.Default()
    protos = [descriptor_pb2.FileDescriptorProto.FromString(_read_descriptor(file)) for file in files]
    message_factory.GetMessages(protos, pool)  # adds each file after the files that it imports
    for file, proto in zip(files, protos, strict=True):
        yield _make_module(f"{MESSAGES}.{file.stem}", file, pool.FindFileByName(proto.name))


def _read_descriptor(file: Path) -> bytes:
    """Return the descriptor in a generated file, from `serialized_pb=_b('...')` or `AddSerializedFile(b'...')`.

    Raises:
        UnsupportedEnvironment: If the file has none.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        candidates: list[ast.AST] = [keyword.value for keyword in node.keywords if keyword.arg == "serialized_pb"]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile":
            candidates += node.args
        for candidate in candidates:
            text = next((part.value for part in ast.walk(candidate) if isinstance(part, ast.Constant)), None)
            if isinstance(text, (str, bytes)):
                return text.encode("latin1") if isinstance(text, str) else text
    raise UnsupportedEnvironment(f"{file} holds no message descriptor: this version of mlagents_envs is not known")


def _make_module(name: str, file: Path, descriptor: Any) -> ModuleType:
    """Return a module with the content that protobuf's generated files have."""
    from google.protobuf.internal import builder

    module: Any = ModuleType(name, "Messages of ML-Agents, rebuilt from their descriptors.")
    module.__file__ = str(file)
    module.__spec__ = importlib.util.spec_from_file_location(name, file)
    module.DESCRIPTOR = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, vars(module))
    builder.BuildTopDescriptorsAndMessages(descriptor, name, vars(module))
    return module
