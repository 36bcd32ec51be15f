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
from algorithm.checkpointing.atomic_io import settle, written
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.rng_state import of_process, restore_process
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.export.checker import check
from algorithm.export.file import OPSET, about, model_of
from algorithm.export.graph import Brain
from algorithm.export.packages import require
from algorithm.export.parity import parity
from algorithm.export.signature import Signature
from algorithm.runs.build import load_agent
from algorithm.runs.run_folder import RunFolder
from algorithm.specs import Role

END, CHECKPOINTS = "end", "checkpoints"  # values of base_config.export, beside never


class ExportFailed(Exception):
    """A file is not what Unity takes, or does not do what its agent does; it was not kept."""

    def __init__(self, role: str, violations: list[str]):
        count = f"{len(violations)} violation{'s' * (len(violations) > 1)}"
        super().__init__(f"{role} was not exported: {count}")
        self.role, self.violations = role, violations


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    role: str
    path: Path
    size: int  # bytes
    opset: int
    inputs: dict[str, list]
    outputs: dict[str, list]
    parity: float  # the largest difference from the agent
    seconds: float

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "path": self.path.as_posix()}

    def __str__(self) -> str:
        shapes = [
            f"{what} " + ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in ports.items())
            for what, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        ]
        size = f"{self.size / 1000:,.1f} kB, opset {self.opset}"
        return f"{self.path}: {size}; {'; '.join(shapes)}; parity {self.parity:.1g}; {self.seconds:.1f} s"


def export(
    settings: Settings, folder: RunFolder, checkpoint: Checkpoint, into: Path, opset: int = OPSET
) -> Iterator[Exported | ExportFailed]:
    """Write `<role>.onnx` of each role of a checkpoint into a folder; what came of it, role by role.

    The generators of the process go on as if nothing had been drawn.

    Raises UserError where a package is missing, or a role has no form in this opset; CheckpointError for a checkpoint
    that cannot be read.
    """
    require()
    known = folder.roles()
    for name in checkpoint.roles:
        if name not in known:
            raise UserError(f"{folder.path / 'roles.json'} has no role {name!r}: --resume writes it again")
        role = known[name]
        result: Exported | ExportFailed
        with untouched():
            agent = load_agent(_on_cpu(settings), folder, checkpoint, name, role)
            try:
                result = write(agent, name, role, checkpoint.counters.env_steps, into, opset)
            except ExportFailed as failed:
                result = failed
        yield result


def _on_cpu(settings: Settings) -> Settings:
    """The same, and that of its roles, on the processor."""
    base = settings.base.model_copy(update={"device": "cpu"})
    roles = {name: _on_cpu(own) for name, own in settings.roles.items()}
    return replace(settings, base=base, roles=roles)


def write(agent: Agent, name: str, role: Role, env_steps: int, into: Path, opset: int = OPSET) -> Exported:
    """Write, check and compare the file of one role, and only then give it its name.

    Raises ExportFailed with every violation, UserError for what has no form in this opset.
    """
    begin = time.perf_counter()
    signature = Signature.of(role, agent.state)
    model = model_of(Brain(agent, signature), opset, about(name, role, signature, env_steps))
    content = model.SerializeToString()
    path = into / f"{name}.onnx"
    with TemporaryDirectory(prefix=".export-", dir=into) as place:
        fresh = Path(place) / path.name
        with written(fresh) as file:
            file.write(content)
        violations = check(fresh, signature, opset)
        compared = None if violations else parity(agent, role, signature, content)
        if compared is None or compared.violations:
            raise ExportFailed(name, violations or compared.violations)
        fresh.replace(path)
    settle(into)
    ports = [{port.name: _axes(port) for port in side} for side in (model.graph.input, model.graph.output)]
    return Exported(name, path, len(content), opset, *ports, compared.error, time.perf_counter() - begin)


def _axes(port: Any) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in port.type.tensor_type.shape.dim]


@contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn in it, the generators of the process go on as if nothing had been."""
    state = of_process()
    try:
        yield
    finally:
        restore_process(state)


class Exports:
    """The exports of a run by its setting `export`; one that fails is a line, and costs the run nothing.

    Raises UserError where a package is missing that will be needed.
    """

    def __init__(self, settings: Settings, folder: RunFolder, say: Callable[[str], None]):
        self.settings, self.folder, self.say = settings, folder, say
        if settings.base.export in (END, CHECKPOINTS):
            require()

    def saved(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was saved: its files stand in its folder, and go with it."""
        if self.settings.base.export == CHECKPOINTS:
            self._export(lambda: checkpoint, checkpoint.folder)

    def ended(self) -> None:
        """The run ended: the files of what is played stand in its folder."""
        if self.settings.base.export in (END, CHECKPOINTS):
            self._export(lambda: self.folder.best(self.say), self.folder.path, self.say)

    def _export(
        self, find: Callable[[], Checkpoint], into: Path, told: Callable[[str], None] = lambda line: None
    ) -> None:
        try:
            for one in export(self.settings, self.folder, find(), into):
                if isinstance(one, ExportFailed):
                    self.say(f"{one}: {'; '.join(one.violations)}")
                else:
                    told(f"exported {one}")
        except Exception as error:  # whatever it is, training is worth more
            reason = " ".join(str(error).split())
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self.say(f"export into {into} failed: {kind}{reason}")
