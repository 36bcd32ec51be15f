"""Export of a run: `<role>.onnx` for each role of a checkpoint, checked and compared with the agent."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.atomic_io import open_synced, sync_folder
from algorithm.checkpointing.checkpoint import Checkpoint, preserve_process_state
from algorithm.config.loader import Settings, resolve
from algorithm.config.registry import find_class
from algorithm.errors import UserError, summarize_error
from algorithm.networks.default_network import make_default_blueprint
from algorithm.parts.components_builder import load_agent
from algorithm.parts.run_folder import RunFolder
from algorithm.program import DEFAULT_ROLE, get_install_command
from algorithm.runs.callbacks import Callback
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.tools.export.graph import OPSET, ExportModule, make_metadata, make_model
from algorithm.tools.export.requirements import (
    BATCH,
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    MASKS,
    MEMORY_OUT,
    Signature,
    find_violations,
    make_runner,
)

EXPORT_CHECKPOINTS = "checkpoints"  # value of base_config.export
PACKAGES = ("onnx", "onnxruntime")
# Of the comparison of a file with its agent.
OBSERVATIONS = 64  # observations in each batch size
BATCHES = (1, 3)  # batch sizes
STEPS = 20  # consecutive steps of an agent with memory
SAMPLES = 1000  # sampled actions in the check of action masks
TOLERANCE = 1e-4  # largest difference of an action or a memory value


def check_packages() -> None:
    """Raise UserError, with the command that installs it, if a package that an export needs is missing."""
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            reason = summarize_error(error)
            raise UserError(f"an export needs the extra onnx ({reason}): {get_install_command('onnx')}") from error


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


def export_roles(
    settings: Settings, folder: RunFolder, checkpoint: Checkpoint, target: Path, opset: int = OPSET
) -> Iterator[ExportResult | ExportFailed]:
    """Write `<role>.onnx` for each role of a checkpoint, and yield the result of each role.

    The state of the process's random generators is restored afterwards.

    Args:
        settings: Settings of the run.
        folder: Folder of the run.
        checkpoint: Checkpoint whose weights are exported.
        target: Folder for the files.
        opset: Version of ONNX's operators.

    Raises:
        UserError: If a package is missing, or a network cannot be expressed in this opset.
        CheckpointError: If the checkpoint cannot be read.
    """
    check_packages()
    known = folder.read_roles()
    for name in checkpoint.roles:
        if name not in known:
            raise UserError(f"{folder.path / 'roles.json'} has no role {name!r}: --resume writes it again")
        role = known[name]
        result: ExportResult | ExportFailed
        on_cpu = settings.for_role(name).base.model_copy(update={"device": "cpu"})
        with preserve_process_state():
            agent = load_agent(replace(settings.for_role(name), base=on_cpu), folder, checkpoint, name, role)
            try:
                result = export_role(agent, name, role, checkpoint.counters.env_steps, target, opset)
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
    if Path(name).name != name:
        raise UserError(f"role {name!r} cannot be exported: its file {name}.onnx would be in another folder")
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


class ParityCheck:
    """A comparison of a file with the deterministic actions and the memory of its agent, and of its action masks.

    Args:
        agent: Agent on the CPU.
        role: Observations and actions of the agent.
        signature: Inputs and outputs of the file.
        content: Content of the file.

    Attributes:
        error: The largest difference between the file and its agent.
        violations: A line for each output beyond the tolerance, and for each masked action.
    """

    def __init__(self, agent: Agent, role: Role, signature: Signature, content: bytes):
        self.agent, self.role, self.signature = agent, role, signature
        self.error, self.violations = 0.0, list[str]()
        self._run, self._rng = make_runner(content), np.random.default_rng(0)
        for batch in BATCHES:
            for _ in range(-(-OBSERVATIONS // batch)):
                self._compare_steps(batch, steps=1)
        if signature.memory:
            self._compare_steps(BATCHES[-1], STEPS)
        if signature.branches:
            self._check_masks()

    def _compare_steps(self, n: int, steps: int) -> None:
        """Compare the decisions at the first steps of `n` episodes, for the same random observations.

        The agent and its file each have their own memory.
        """
        signature, family = self.signature, self.agent.family
        memory, previous, file_memory = (
            np.zeros((n, size), np.float32) for size in (self.agent.state_size, signature.previous, signature.memory)
        )
        for _ in range(steps):
            obs = sample_observations(self.role, self._rng, n)
            outputs = self._run(signature.make_feed(obs, file_memory))
            if signature.previous:
                obs[PREVIOUS_ACTION] = previous
            statistics, memory = self.agent.policy.act(obs, memory)
            mode = family.mode(statistics)
            if signature.continuous:
                self._compare(CONTINUOUS_MODE, outputs, family.to_action(mode)[:, : signature.continuous])
            if signature.branches:
                self._compare_indices(outputs[DISCRETE_MODE], mode, statistics)
            expected = memory
            if signature.previous:
                actions = [outputs[name].astype(np.float32) for name in (CONTINUOUS, DISCRETE) if name in outputs]
                previous = self.role.action_spec.encode(np.concatenate(actions, -1))  # that Unity executes
                expected = np.concatenate((memory, previous), -1)
            if signature.memory:
                self._compare(MEMORY_OUT, outputs, expected.reshape(n, 1, -1))
                file_memory = outputs[MEMORY_OUT].reshape(n, -1)

    def _compare(self, name: str, outputs: Mapping[str, np.ndarray], expected: np.ndarray) -> None:
        """Record the difference between an output and what it should be."""
        error = float(np.abs(outputs[name] - expected).max(initial=0.0))
        self.error = max(self.error, error)
        if not error <= TOLERANCE:
            self._report(name, f" by {error:.2g}")

    def _compare_indices(self, found: np.ndarray, mode: np.ndarray, statistics: np.ndarray) -> None:
        """Compare the most probable actions; another index with the same probability is accepted."""
        other = np.concatenate((mode[:, : self.signature.continuous], found.astype(np.float32)), -1)
        policy = self.agent.family(torch.from_numpy(statistics))
        difference = policy.log_prob(torch.from_numpy(mode)) - policy.log_prob(torch.from_numpy(other))
        if difference.abs().max() > TOLERANCE:
            self._report(DISCRETE_MODE)

    def _report(self, name: str, size: str = "") -> None:
        """Add the violation of an output, unless it has one."""
        if not any(line.startswith(name) for line in self.violations):
            self.violations.append(f"{name} differs from the agent's{size}")

    def _check_masks(self) -> None:
        """Check that no masked action is chosen."""
        obs, memory = sample_observations(self.role, self._rng, SAMPLES), np.zeros((SAMPLES, self.signature.memory))
        feed = self.signature.make_feed(obs, memory.astype(np.float32))
        feed[MASKS] = sample_masks(self.signature.branches, self._rng, SAMPLES)
        outputs, ends = self._run(feed), np.cumsum(self.signature.branches)
        for branch, allowed in enumerate(np.split(feed[MASKS], ends[:-1], 1)):
            for name in (DISCRETE, DISCRETE_MODE):
                taken = np.take_along_axis(allowed, outputs[name][:, branch : branch + 1].astype(np.int64), 1)
                if not taken.all():
                    count = f"{(taken == 0).sum()} of {SAMPLES}"
                    self.violations.append(f"{name} chose a masked action of branch {branch} in {count} cases")


def sample_observations(role: Role, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return random observations {name: [n, ...]} of a role, in which some actions are masked."""
    obs = {name: _sample_observation(spec, rng, n) for name, spec in role.obs_specs.items()}
    if ACTION_MASK in obs:
        obs[ACTION_MASK] = sample_masks(role.action_spec.branches, rng, n).astype(np.uint8)
    return obs


def _sample_observation(spec: ObsSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    if spec.n_values:
        return _sample_one_hot(spec.n_values, rng, n).astype(spec.dtype)
    if spec.dtype == "uint8":
        return rng.integers(int(spec.high) + 1, size=(n, *spec.shape), dtype=np.uint8)
    return rng.standard_normal((n, *spec.shape)).astype(spec.dtype)


def sample_masks(branches: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """Return random masks [n, sum of branches] that allow at least one action of each branch."""
    return np.maximum(_sample_one_hot(branches, rng, n), rng.random((n, sum(branches))) < 0.5).astype(np.float32)


def _sample_one_hot(counts: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([np.eye(count)[rng.integers(count, size=n)] for count in counts], 1)


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
        check_packages()

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
            for result in export_roles(self._settings, self._folder, find_checkpoint(), target):
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
