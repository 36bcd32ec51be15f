"""The code that a program passes to `train`, written as env.py and nn.py of its run folder."""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from algorithm import networks
from algorithm.errors import UserError
from algorithm.networks import Blueprint

NETWORK_FILE = "nn.py"


def write_env_file(folder: Path, make: Callable[..., Any]) -> None:
    """Write an env.py that imports `make`; none for a function that cannot be imported."""
    if origin := _find_import(make):
        text = f'"""The environment of this run."""\n\nfrom {origin[0]} import {origin[1]} as make  # noqa: F401\n'
        (folder / "env.py").write_text(text, encoding="utf-8")


def write_network_file(folder: Path, blueprint: Blueprint | Callable[..., Any]) -> None:
    """Write an nn.py with a Blueprint, or one that imports the function `blueprint`.

    Raises:
        UserError: the blueprint is neither, or contains a part that cannot be imported.
    """
    if not isinstance(blueprint, Blueprint) and (origin := _find_import(blueprint)):
        lines = [f"from {origin[0]} import {origin[1]} as blueprint  # noqa: F401"]
    else:
        made = blueprint() if inspect.isfunction(blueprint) else blueprint
        if not isinstance(made, Blueprint):
            raise UserError(f"blueprint is a {type(made).__name__}: pass a Blueprint, or a function that returns one")
        writer = _SourceWriter()
        definition = f"blueprint = {writer.format(made)}"
        lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(writer.imports.items())]
        lines += ["", definition]
    text = '"""The network of this run."""\n\n' + "\n".join(lines) + "\n"
    (folder / NETWORK_FILE).write_text(text, encoding="utf-8")


class _SourceWriter:
    """A writer of the factories of a blueprint as Python code; `imports` are the names that it needs, by module.

    A factory is an object that keeps each argument of its class as an attribute of this name, or a function.
    """

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = defaultdict(set)

    def format(self, value: Any) -> str:
        """Return the code of a factory, or of an argument of a factory."""
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, tuple | list):
            items = "".join(f"{self.format(item)}, " for item in value)
            return f"({items})" if isinstance(value, tuple) else f"[{items}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {self.format(item)}' for key, item in value.items())}}}"
        if inspect.isfunction(value) or inspect.isclass(value):
            return self._import(value)
        return f"{self._import(type(value))}({', '.join(self._format_arguments(value))})"

    def _format_arguments(self, factory: Any) -> list[str]:
        """Return the arguments that make an equal factory, without those that have their default."""
        arguments = []
        for name, parameter in inspect.signature(type(factory)).parameters.items():
            if not hasattr(factory, name):
                raise UserError(
                    f"blueprint: {type(factory).__name__} does not keep its argument {name} as an attribute, so it "
                    f"cannot be written to {NETWORK_FILE}: pass a function of a module, which is imported"
                )
            value = getattr(factory, name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                arguments += [self.format(item) for item in value]
            elif value != parameter.default:
                arguments.append(f"{name}={self.format(value)}")
        return arguments

    def _import(self, thing: Any) -> str:
        """Return the name of a function or class, which the code imports."""
        own = (networks.__name__, thing.__name__)
        origin = own if getattr(networks, thing.__name__, None) is thing else _find_import(thing)
        if origin is None:
            raise UserError(
                f"blueprint: {thing.__qualname__} cannot be imported by the processes that load the run: define it in "
                "a module, not in the program itself or inside a function"
            )
        self.imports[origin[0]].add(origin[1])
        return origin[1]


def _find_import(thing: Any) -> tuple[str, str] | None:
    """Return module and name by which another process can import a function or class; None if it cannot."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is thing else None
