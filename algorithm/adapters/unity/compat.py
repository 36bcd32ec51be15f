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
    """Replace ML-Agents' get_logger, which adds another handler at every call, and so at every unknown message.

    The logger passes each line once, since a scene may send messages without a receiver at every tick.
    """
    logger, logged = logging.getLogger(name), set()

    def is_new(record: logging.LogRecord) -> bool:
        line = record.getMessage()
        has_been_logged = line in logged
        logged.add(line)
        return not has_been_logged

    if not logger.filters:
        logger.addFilter(is_new)
    return logger


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
    from google.protobuf.internal import builder

    pool = descriptor_pool.Default()
    protos = [descriptor_pb2.FileDescriptorProto.FromString(_read_descriptor(file)) for file in files]
    message_factory.GetMessages(protos, pool)  # adds each file after the files that it imports
    for file, proto in zip(files, protos, strict=True):
        name = f"{MESSAGES}.{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None, file
        module: Any = importlib.util.module_from_spec(spec)
        module.__doc__ = "Messages of ML-Agents, rebuilt from their descriptors."
        module.DESCRIPTOR = pool.FindFileByName(proto.name)
        builder.BuildMessageAndEnumDescriptors(module.DESCRIPTOR, vars(module))
        builder.BuildTopDescriptorsAndMessages(module.DESCRIPTOR, name, vars(module))
        yield module


def _read_descriptor(file: Path) -> bytes:
    """Return the descriptor in a generated file, from `serialized_pb=_b('...')` or `AddSerializedFile(b'...')`.

    Raises:
        UnsupportedEnvironment: If the file has none.
    """
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    arguments = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "serialized_pb"]
    arguments += [call.args[0] for call in calls if getattr(call.func, "attr", None) == "AddSerializedFile"]
    for part in (part for argument in arguments for part in ast.walk(argument)):
        if isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)):
            return part.value.encode("latin1") if isinstance(part.value, str) else part.value
    raise UnsupportedEnvironment(f"{file} holds no message descriptor: this version of mlagents_envs is not known")
