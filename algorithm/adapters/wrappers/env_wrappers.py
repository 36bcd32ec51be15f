"""Wrappers that settings name, applied to a single environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.missing_extras import find_package, load_callable

Wrappers = Sequence[tuple[str, Mapping[str, Any]]]


def apply_wrappers(env: Any, wrappers: Wrappers) -> Any:
    """Return `env` inside all of `wrappers`, the last one outermost.

    Lists among the arguments become tuples, which YAML does not have. Raises UnsupportedEnvironment, naming the
    wrapper, if it does not exist or refuses the environment or its arguments.
    """
    for path, arguments in wrappers:
        try:
            env = load_callable(path)(env, **{key: _to_tuple(value) for key, value in arguments.items()})
        except UnsupportedEnvironment as error:
            raise UnsupportedEnvironment(f"env_wrappers: {error}") from error
        except Exception as error:  # anything that a wrapper raises
            package = find_package(error)
            line, _, _ = str(error).partition("\n")
            install = f"; pip install {package}" if package else ""
            raise UnsupportedEnvironment(f"env_wrappers: {path}: {type(error).__name__}: {line}{install}") from error
    return env


def reject_wrappers(config: EnvConfig, what: str) -> None:
    """Raise UnsupportedEnvironment if there are wrappers, since `what` has no single environments to wrap."""
    if config.wrappers:
        names = ", ".join(path for path, _ in config.wrappers)
        raise UnsupportedEnvironment(f"env_wrappers ({names}) wrap single environments, and {what} has none")


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(part) for part in value) if isinstance(value, list) else value
