"""Comparison of the actions and memory of an ONNX file with the actions and memory of its agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from algorithm.adapters.wrappers.previous_action_reward import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.rollout import Decision, Step
from algorithm.specs import ACTION_MASK, ObsSpec, Role
from algorithm.tools.export.onnx_model import make_session, run_session
from algorithm.tools.export.signature import (
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    MASKS,
    MEMORY_OUT,
    Signature,
)

OBSERVATIONS = 64  # observations in each batch size
BATCHES = (1, 3)  # batch sizes
STEPS = 20  # consecutive steps of an agent with memory
SAMPLES = 1000  # sampled actions in the check of action masks
TOLERANCE = 1e-4  # largest difference of an action or a memory value


@dataclass
class ParityReport:
    """The largest difference between a file and its agent, and a line for each output beyond the tolerance."""

    error: float = 0.0
    violations: list[str] = field(default_factory=list)

    def compare(self, what: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Record the difference between two arrays that should be equal."""
        error = float(np.abs(found - expected).max(initial=0.0))
        self.error = max(self.error, error)
        if not error <= TOLERANCE:
            self.fail(f"{what} differs from the agent's by {error:.2g}")

    def fail(self, what: str) -> None:
        """Record a violation, once for each output."""
        if not any(
            violation.partition(" differs")[0] == what.partition(" differs")[0] for violation in self.violations
        ):
            self.violations.append(what)


def check_parity(agent: Agent, role: Role, signature: Signature, content: bytes) -> ParityReport:
    """Compare a file with the deterministic actions and the memory of its agent, and check its action masks.

    Args:
        agent: Agent on the CPU.
        role: Observations and actions of the agent.
        signature: Inputs and outputs of the file.
        content: Content of the file.
    """
    report, session, rng = ParityReport(), make_session(content), np.random.default_rng(0)
    comparison = _Comparison(agent, role, signature, session, rng, report)
    for batch in BATCHES:
        for _ in range(-(-OBSERVATIONS // batch)):
            comparison.run(batch, steps=1)
    if signature.memory:
        comparison.run(BATCHES[-1], STEPS)
    if signature.branches:
        _check_masks(signature, role, session, rng, report)
    return report


@dataclass(frozen=True)
class _Comparison:
    """An agent and its file in the same episodes, each with its own memory."""

    agent: Agent
    role: Role
    signature: Signature
    session: Any
    rng: np.random.Generator
    report: ParityReport

    def run(self, n: int, steps: int) -> None:
        """Compare the decisions at the first steps of `n` episodes, for the same random observations."""
        signature, all_false = self.signature, np.zeros(n, bool)
        memory, previous, file_memory = (
            np.zeros((n, size), np.float32) for size in (self.agent.state_size, signature.previous, signature.memory)
        )
        for number in range(steps):
            obs = sample_observations(self.role, self.rng, n)
            outputs = run_session(self.session, signature.make_feed(obs, file_memory))
            if signature.previous:
                obs[PREVIOUS_ACTION] = previous
            step = Step(
                lane=np.arange(n),
                obs=obs,
                first=np.full(n, number == 0),
                is_bootstrap_row=all_false,
                reward=np.zeros(n, np.float32),
                alive=~all_false,
            )
            decision = self.agent.greedy(step, memory)
            self._compare_actions(outputs, decision)
            memory = expected = decision.memory
            if signature.previous:
                previous = self.role.action_spec.encode(_read_actions(outputs))
                expected = np.concatenate((expected, previous), -1)
            if signature.memory:
                file_memory = outputs[MEMORY_OUT].reshape(n, -1)
                self.report.compare(MEMORY_OUT, file_memory, expected)

    def _compare_actions(self, outputs: dict[str, np.ndarray], decision: Decision) -> None:
        """Compare the most probable actions; another index with the same probability is accepted."""
        n_continuous = self.signature.continuous
        if n_continuous:
            self.report.compare(CONTINUOUS_MODE, outputs[CONTINUOUS_MODE], decision.action[:, :n_continuous])
        if not self.signature.branches:
            return
        indices = outputs[DISCRETE_MODE].astype(np.float32)
        other = np.concatenate((decision.raw_action[:, :n_continuous], indices), -1)
        if np.array_equal(other, decision.raw_action):
            return
        policy = self.agent.family(torch.from_numpy(decision.behavior))
        difference = policy.log_prob(torch.from_numpy(decision.raw_action)) - policy.log_prob(torch.from_numpy(other))
        if difference.abs().max() > TOLERANCE:
            self.report.fail(f"{DISCRETE_MODE} differs from the agent's")


def sample_observations(role: Role, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return random observations {name: [n, ...]} of a role, in which some actions are masked."""
    obs = {name: _sample_observation(spec, rng, n) for name, spec in role.obs_specs.items()}
    if ACTION_MASK in obs:
        obs[ACTION_MASK] = sample_masks(role.action_spec.branches, rng, n).astype(np.uint8)
    return obs


def _sample_observation(spec: ObsSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    if spec.n_values:
        return np.concatenate(
            [np.eye(count, dtype=spec.dtype)[rng.integers(count, size=n)] for count in spec.n_values], 1
        )
    if spec.dtype == "uint8":
        return rng.integers(int(spec.high) + 1, size=(n, *spec.shape), dtype=np.uint8)
    return rng.standard_normal((n, *spec.shape)).astype(spec.dtype)


def sample_masks(branches: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """Return random masks [n, sum of branches] that allow at least one action of each branch."""
    masks = []
    for actions in branches:
        mask = rng.random((n, actions)) < 0.5
        mask[np.arange(n), rng.integers(actions, size=n)] = True
        masks.append(mask)
    return np.concatenate(masks, 1).astype(np.float32)


def _read_actions(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the actions [n, size] that Unity executes."""
    parts = [outputs[name].astype(np.float32) for name in (CONTINUOUS, DISCRETE) if name in outputs]
    return np.concatenate(parts, -1)


def _check_masks(
    signature: Signature, role: Role, session: Any, rng: np.random.Generator, report: ParityReport
) -> None:
    """Check that no masked action is chosen."""
    feed = signature.make_feed(
        sample_observations(role, rng, SAMPLES), np.zeros((SAMPLES, signature.memory), np.float32)
    )
    feed[MASKS] = sample_masks(signature.branches, rng, SAMPLES)
    outputs = run_session(session, feed)
    begin = 0
    for branch, actions in enumerate(signature.branches):
        allowed = feed[MASKS][:, begin : begin + actions]
        begin += actions
        for name in (DISCRETE, DISCRETE_MODE):
            taken = np.take_along_axis(allowed, outputs[name][:, branch : branch + 1].astype(np.int64), 1)
            if not taken.all():
                report.fail(
                    f"{name} chose a masked action of branch {branch} in {int((taken == 0).sum())} of {SAMPLES} cases"
                )
