"""The results of exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from algorithm.errors import UserError


class ExportFailed(Exception):
    """An error for a file that Unity would reject, or whose outputs differ from the agent's; the file is deleted."""

    def __init__(self, role: str, violations: list[str]):
        count = f"{len(violations)} violation{'s' * (len(violations) > 1)}"
        super().__init__(f"{role} was not exported: {count}")
        self.role, self.violations = role, violations


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The description of a file that has been written."""

    role: str
    path: Path
    size: int  # in bytes
    opset: int
    inputs: dict[str, list]
    outputs: dict[str, list]
    parity: float  # largest difference from the agent
    seconds: float

    def __str__(self) -> str:
        shapes = [
            f"{what} " + ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in ports.items())
            for what, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        ]
        size = f"{self.size / 1000:,.1f} kB, opset {self.opset}"
        return f"{self.path}: {size}; {'; '.join(shapes)}; parity {self.parity:.1g}; {self.seconds:.1f} s"


def check_file_name(role: str) -> None:
    """Raise UserError for a role whose name is not that of a file."""
    if Path(role).name != role:
        raise UserError(f"role {role!r} cannot be exported: its file {role}.onnx would be in another folder")
