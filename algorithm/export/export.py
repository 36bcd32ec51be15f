"""The roles of a checkpoint as files that were checked and compared before they had their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from algorithm.agents.agent import Agent
from algorithm.checkpointing.atomic_io import open_synced, sync_folder
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.rng_state import get_process_state, set_process_state
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.export.checker import find_violations
from algorithm.export.file import OPSET, make_metadata, make_model
from algorithm.export.graph import ExportModule
from algorithm.export.packages import check_packages
from algorithm.export.parity import check_parity
from algorithm.export.signature import Signature
from algorithm.runs.build import load_agent
from algorithm.runs.run_folder import RunFolder
from algorithm.specs import Role

EXPORT_AT_END, EXPORT_CHECKPOINTS = "end", "checkpoints"  # values of base_config.export, beside never


class ExportFailed(Exception):
    """A file is not what Unity takes, or does not do what its agent does; it was not kept."""

    def __init__(self, role: str, violations: list[str]):
        count = f"{len(violations)} violation{'s' * (len(violations) > 1)}"
        super().__init__(f"{role} was not exported: {count}")
        self.role, self.violations = role, violations


@dataclass(frozen=True)
class ExportResult:
    """A file that was written."""

    role: str
    path: Path
    size: int  # bytes
    opset: int
    inputs: dict[str, list]
    outputs: dict[str, list]
    parity: float  # the largest difference from the agent
    seconds: float

    def to_record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "path": self.path.as_posix()}

    def __str__(self) -> str:
        shapes = [
            f"{what} " + ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in ports.items())
            for what, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        ]
        size = f"{self.size / 1000:,.1f} kB, opset {self.opset}"
        return f"{self.path}: {size}; {'; '.join(shapes)}; parity {self.parity:.1g}; {self.seconds:.1f} s"


def export_roles(
    settings: Settings, folder: RunFolder, checkpoint: Checkpoint, target: Path, opset: int = OPSET
) -> Iterator[ExportResult | ExportFailed]:
    """Write `<role>.onnx` of each role of a checkpoint into a folder; what came of it, role by role.

    The generators of the process go on as if nothing had been drawn.

    Raises UserError where a package is missing, or a role has no form in this opset; CheckpointError for a checkpoint
    that cannot be read.
    """
    check_packages()
    known = folder.read_roles()
    for name in checkpoint.roles:
        if name not in known:
            raise UserError(f"{folder.path / 'roles.json'} has no role {name!r}: --resume writes it again")
        role = known[name]
        result: ExportResult | ExportFailed
        with preserve_rng_state():
            agent = load_agent(_on_cpu(settings), folder, checkpoint, name, role)
            try:
                result = export_role(agent, name, role, checkpoint.counters.env_steps, target, opset)
            except ExportFailed as failed:
                result = failed
        yield result


def _on_cpu(settings: Settings) -> Settings:
    """The same, and that of its roles, on the processor."""
    base = settings.base.model_copy(update={"device": "cpu"})
    roles = {name: _on_cpu(role_settings) for name, role_settings in settings.roles.items()}
    return replace(settings, base=base, roles=roles)


def export_role(agent: Agent, name: str, role: Role, env_steps: int, target: Path, opset: int = OPSET) -> ExportResult:
    """Write, check and compare the file of one role, and only then give it its name.

    Raises ExportFailed with every violation, UserError for what has no form in this opset.
    """
    start = time.perf_counter()
    signature = Signature.of(role, agent.state_size)
    model = make_model(ExportModule(agent, signature), opset, make_metadata(name, role, signature, env_steps))
    content = model.SerializeToString()
    path = target / f"{name}.onnx"
    with TemporaryDirectory(prefix=".export-", dir=target) as temporary_folder:
        temporary = Path(temporary_folder) / path.name
        with open_synced(temporary) as file:
            file.write(content)
        violations = find_violations(temporary, signature, opset)
        comparison = None if violations else check_parity(agent, role, signature, content)
        if comparison is None or comparison.violations:
            raise ExportFailed(name, violations or comparison.violations)
        temporary.replace(path)
    sync_folder(target)
    ports = [{port.name: _read_axes(port) for port in side} for side in (model.graph.input, model.graph.output)]
    return ExportResult(name, path, len(content), opset, *ports, comparison.error, time.perf_counter() - start)


def _read_axes(port: Any) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in port.type.tensor_type.shape.dim]


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Whatever is drawn in it, the generators of the process go on as if nothing had been."""
    state = get_process_state()
    try:
        yield
    finally:
        set_process_state(state)


class RunExporter:
    """The exports of a run by its setting `export`; one that fails is a line, and costs the run nothing.

    Raises UserError where a package is missing that will be needed.
    """

    def __init__(self, settings: Settings, folder: RunFolder, log: Callable[[str], None]):
        self.settings, self.folder, self.log = settings, folder, log
        if settings.base.export in (EXPORT_AT_END, EXPORT_CHECKPOINTS):
            check_packages()

    def export_checkpoint(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was saved: its files stand in its folder, and go with it."""
        if self.settings.base.export == EXPORT_CHECKPOINTS:
            self._export(lambda: checkpoint, checkpoint.folder)

    def export_best(self) -> None:
        """The run ended: the files of what is played stand in its folder."""
        if self.settings.base.export in (EXPORT_AT_END, EXPORT_CHECKPOINTS):
            self._export(lambda: self.folder.find_best(self.log), self.folder.path, self.log)

    def _export(
        self,
        find_checkpoint: Callable[[], Checkpoint],
        target: Path,
        log_success: Callable[[str], None] = lambda line: None,
    ) -> None:
        try:
            for result in export_roles(self.settings, self.folder, find_checkpoint(), target):
                if isinstance(result, ExportFailed):
                    self.log(f"{result}: {'; '.join(result.violations)}")
                else:
                    log_success(f"exported {result}")
        except Exception as error:  # whatever it is, training is worth more
            reason = " ".join(str(error).split())
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self.log(f"export into {target} failed: {kind}{reason}")
