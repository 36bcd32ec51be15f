"""The two packages that an export needs, imported where they are used."""

from __future__ import annotations

from importlib import import_module

from algorithm.errors import UserError

PACKAGES = ("onnx", "onnxruntime")


def check_packages() -> None:
    """Raises UserError, with the command that mends it, where one of them is missing."""
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            line = " ".join(str(error).split())
            raise UserError(f'an export needs the extra onnx ({line}): pip install -e ".[onnx]"') from error
