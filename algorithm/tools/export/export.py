"""Export of a run: `<role>.onnx` for each role of a checkpoint, checked and compared with the agent."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.atomic_io import open_synced, sync_folder
from algorithm.checkpointing.checkpoint import Checkpoint, preserve_process_state
from algorithm.config.loader import Settings, resolve
from algorithm.config.registry import find_class
from algorithm.errors import UserError, summarize_error
from algorithm.networks.default_network import make_default_blueprint
from algorithm.parts.components_builder import load_agent
from algorithm.parts.run_folder import ROLES_FILE, RunFolder
from algorithm.program import DEFAULT_ROLE, get_install_command
from algorithm.runs.callbacks import Callback
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.tools.export.graph import BARRACUDA_OPSET, DYNAMO_OPSET, OPSET, ExportModule, make_metadata, make_model
from algorithm.tools.export.parity import ParityCheck
from algorithm.tools.export.plain import export_plain
from algorithm.tools.export.requirements import (
    BATCH,
    Signature,
    find_violations,
)
from algorithm.tools.export.result import ExportFailed, ExportResult, check_file_name

EXPORT_CHECKPOINTS = "checkpoints"  # value of base_config.export
PACKAGES = ("onnx", "onnxruntime")
OPSETS = {"barracuda": BARRACUDA_OPSET, "sentis": OPSET, "sentis_dynamo": DYNAMO_OPSET}  # of the formats for Unity
PLAIN = "plain"  # the format without Unity's names
PACKAGES_OF_FORMAT = {"sentis_dynamo": ("onnxscript",), PLAIN: ("safetensors",)}


def check_packages(kind: str) -> None:
    """Raise UserError, with the command that installs it, if a package that a format needs is missing."""
    for name in (*PACKAGES, *PACKAGES_OF_FORMAT.get(kind, ())):
        try:
            import_module(name)
        except ImportError as error:
            reason = summarize_error(error)
            raise UserError(f"an export needs the extra onnx ({reason}): {get_install_command('onnx')}") from error


def export_roles(
    settings: Settings, folder: RunFolder, checkpoint: Checkpoint, target: Path, kind: str
) -> Iterator[ExportResult | ExportFailed]:
    """Write `<role>.onnx` for each role of a checkpoint, and yield the result of each role.

    The state of the process's random generators is restored afterwards.

    Args:
        settings: Settings of the run.
        folder: Folder of the run.
        checkpoint: Checkpoint whose weights are exported.
        target: Folder for the files.
        kind: Format of the files: a key of `OPSETS`, or `PLAIN`.

    Raises:
        UserError: If a package is missing, or a network cannot be expressed in this format.
        CheckpointError: If the checkpoint cannot be read.
    """
    check_packages(kind)
    known = folder.read_roles()
    for name in checkpoint.roles:
        if name not in known:
            raise UserError(f"{folder.path / ROLES_FILE} has no role {name!r}: --resume writes it again")
        role = known[name]
        result: ExportResult | ExportFailed
        on_cpu = settings.for_role(name).base.model_copy(update={"device": "cpu"})
        with preserve_process_state():
            agent = load_agent(replace(settings.for_role(name), base=on_cpu), folder, checkpoint, name, role)
            try:
                env_steps = checkpoint.counters.env_steps
                if kind == PLAIN:
                    result = export_plain(agent, name, role, env_steps, target)
                else:
                    result = export_role(agent, name, role, env_steps, target, OPSETS[kind])
            except ExportFailed as failed:
                result = failed
        yield result


def export_role(agent: Agent, name: str, role: Role, env_steps: int, target: Path, opset: int = OPSET) -> ExportResult:
    """Write the file of one role under a temporary name, check it, and rename it to `<name>.onnx` if it is correct.

    Args:
        agent: Agent of the role.
        name: Name of the role.
        role: Observations and actions.
        env_steps: Env steps of the checkpoint, for the file's metadata.
        target: Folder for the file.
        opset: Version of ONNX's operators.

    Raises:
        ExportFailed: With every violation.
        UserError: If the network cannot be expressed in this opset, or the name is not that of a file.
    """
    check_file_name(name)
    start = time.perf_counter()
    signature = Signature.of(role, agent.state_size)
    model = make_model(ExportModule(agent, signature), opset, make_metadata(name, role, signature, env_steps))
    content = model.SerializeToString()
    path = target / f"{name}.onnx"
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target) as temporary_folder:
        temporary = Path(temporary_folder) / path.name
        with open_synced(temporary) as file:
            file.write(content)
        if violations := find_violations(temporary, signature, opset):
            raise ExportFailed(name, violations)
        comparison = ParityCheck(agent, role, signature, content)
        if comparison.violations:
            raise ExportFailed(name, comparison.violations)
        temporary.replace(path)
    sync_folder(target)
    outputs = signature.outputs().items()
    return ExportResult(
        role=name,
        path=path,
        size=len(content),
        opset=opset,
        inputs={name: [BATCH, *shape] for name, shape in signature.inputs().items()},
        outputs={name: [BATCH, *output] if isinstance(output, tuple) else [*output.shape] for name, output in outputs},
        parity=comparison.error,
        seconds=time.perf_counter() - start,
    )


class RunExporter(Callback):
    """An exporter of a run in training, controlled by `base_config.export`.

    An export that fails logs a line and does not stop the run.
    """

    def __init__(self, settings: Settings, folder: RunFolder, log: Callable[[str], None]):
        """Create the exporter.

        Args:
            settings: Settings of the run, in which `base_config.export` is not never.
            folder: Folder of the run.
            log: Receives lines for the user.

        Raises:
            UserError: If a package is missing.
        """
        self._settings, self._folder, self._log = settings, folder, log
        check_packages(settings.base.export_format)

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Export a saved checkpoint into its folder; the files are deleted together with the checkpoint."""
        if self._settings.base.export == EXPORT_CHECKPOINTS:
            self._export(lambda: checkpoint, checkpoint.folder)

    def export_best(self) -> None:
        """Export the checkpoint that `--run` plays, at the end of the run, into the run folder."""
        self._export(lambda: self._folder.find_best(self._log), self._folder.path, self._log)

    def _export(
        self,
        find_checkpoint: Callable[[], Checkpoint],
        target: Path,
        log_success: Callable[[str], None] = lambda line: None,
    ) -> None:
        try:
            kind = self._settings.base.export_format
            for result in export_roles(self._settings, self._folder, find_checkpoint(), target, kind):
                if isinstance(result, ExportFailed):
                    self._log(f"{result}: {'; '.join(result.violations)}")
                else:
                    log_success(f"exported {result}")
        except Exception as error:  # no error of an export may end the training
            reason = str(error) if isinstance(error, UserError) else summarize_error(error)
            self._log(f"export into {target} failed: {reason}")


def run_round_trip() -> str:
    """Export an untrained agent with all checks, and return the versions of the packages that were used.

    Raises:
        ExportFailed: If the outputs of the file differ from torch's.
    """
    import onnx
    import onnxruntime

    settings = resolve([])
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(2))
    make = find_class("algorithm", settings.base.algorithm)
    with preserve_process_state(), tempfile.TemporaryDirectory() as folder:
        agent = make(settings.agent, make_default_blueprint(role), role, np.random.default_rng(0))
        agent.policy.eval()
        exported = export_role(agent, DEFAULT_ROLE, role, 0, Path(folder))
    return (
        f"onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}, opset {exported.opset}, "
        f"within {max(exported.parity, 1e-12):.0e} of torch"
    )
