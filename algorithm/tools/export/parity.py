"""The comparison of an exported file with its agent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.specs import ACTION_MASK, ObsSpec, Role
from algorithm.tools.export.requirements import (
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    MASKS,
    MEMORY_OUT,
    Signature,
    make_runner,
)

OBSERVATIONS = 64  # observations in each batch size
BATCHES = (1, 3)  # batch sizes
STEPS = 20  # consecutive steps of an agent with memory
SAMPLES = 1000  # sampled actions in the check of action masks
TOLERANCE = 1e-4  # largest difference of an action or a memory value


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
