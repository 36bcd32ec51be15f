"""Whether a file does what the agent does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from algorithm.adapters.wrappers.previous_action_reward import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.export.onnx_model import run, session
from algorithm.export.signature import (
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    MASKS,
    MEMORY_OUT,
    Signature,
)
from algorithm.rollout import Decision, Step
from algorithm.specs import MASK, ObsSpec, Role

OBSERVATIONS, BATCHES, STEPS, SAMPLES = 64, (1, 3), 20, 1000
TOLERANCE = 1e-4


@dataclass
class Parity:
    """How far a file is from its agent: the largest difference, and a line for each thing that is beyond tolerance."""

    error: float = 0.0
    violations: list[str] = field(default_factory=list)

    def compare(self, what: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Numbers that must be the same."""
        error = float(np.abs(found - expected).max(initial=0.0))
        self.error = max(self.error, error)
        if not error <= TOLERANCE:
            self.fail(f"{what} differs from the agent's by {error:.2g}")

    def fail(self, what: str) -> None:
        """Something is not as it must be; told once."""
        if not any(told.partition(" differs")[0] == what.partition(" differs")[0] for told in self.violations):
            self.violations.append(what)


def parity(agent: Agent, role: Role, signature: Signature, content: bytes) -> Parity:
    """Compare a file's actions and memory with what the agent does greedily, and look whether it minds the masks."""
    found, runner, rng = Parity(), session(content), np.random.default_rng(0)
    comparison = _Comparison(agent, role, signature, runner, rng, found)
    for batch in BATCHES:
        for _ in range(-(-OBSERVATIONS // batch)):
            comparison.begin(batch)
            comparison.step()
    if signature.memory:
        comparison.begin(BATCHES[-1])
        for _ in range(STEPS):
            comparison.step()
    if signature.branches:
        _masked(signature, role, runner, rng, found)
    return found


class _Comparison:
    """The agent and its file, side by side, each with a memory of its own."""

    def __init__(
        self, agent: Agent, role: Role, signature: Signature, runner: Any, rng: np.random.Generator, found: Parity
    ):
        self.agent, self.role, self.signature, self.runner, self.rng = agent, role, signature, runner, rng
        self.found = found

    def begin(self, batch: int) -> None:
        """Episodes start in so many lanes."""
        self.first = np.ones(batch, bool)
        self.memory = np.zeros((batch, self.agent.state), np.float32)
        self.previous = np.zeros((batch, self.signature.previous), np.float32)
        self.own = np.zeros((batch, self.signature.memory), np.float32)  # the file's

    def step(self) -> None:
        """One decision of both."""
        n, signature = len(self.first), self.signature
        obs = draw(self.role, self.rng, n)
        outputs = run(self.runner, signature.feed(obs, self.own))
        if signature.previous:
            obs[PREVIOUS_ACTION] = self.previous
        no = np.zeros(n, bool)
        step = Step(np.arange(n), obs, self.first, no, np.zeros(n, np.float32), ~no)
        decision = self.agent.greedy(step, self.memory)
        self._actions(outputs, decision)
        self.memory, self.first = decision.memory, no
        expected = decision.memory
        if signature.previous:
            self.previous = self.role.action_spec.encode(_drawn(outputs))
            expected = np.concatenate((expected, self.previous), -1)
        if signature.memory:
            self.own = outputs[MEMORY_OUT].reshape(n, -1)
            self.found.compare(MEMORY_OUT, self.own, expected)

    def _actions(self, outputs: dict[str, np.ndarray], decision: Decision) -> None:
        """The most probable ones; of indices, one that is as probable will do."""
        numbers = self.signature.continuous
        if numbers:
            self.found.compare(CONTINUOUS_MODE, outputs[CONTINUOUS_MODE], decision.action[:, :numbers])
        if not self.signature.branches:
            return
        indices = outputs[DISCRETE_MODE].astype(np.float32)
        other = np.concatenate((decision.sample[:, :numbers], indices), -1)
        if np.array_equal(other, decision.sample):
            return
        policy = self.agent.family(torch.from_numpy(decision.behavior))
        less = policy.log_prob(torch.from_numpy(decision.sample)) - policy.log_prob(torch.from_numpy(other))
        if less.abs().max() > TOLERANCE:
            self.found.fail(f"{DISCRETE_MODE} differs from the agent's")


def draw(role: Role, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Random observations of a role, {name: [n, ...]}, as its agent takes them; some actions are forbidden."""
    obs = {name: _draw(spec, rng, n) for name, spec in role.obs_specs.items()}
    if MASK in obs:
        obs[MASK] = allow(role.action_spec.branches, rng, n).astype(np.uint8)
    return obs


def _draw(spec: ObsSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    if spec.counts:
        return np.concatenate(
            [np.eye(count, dtype=spec.dtype)[rng.integers(count, size=n)] for count in spec.counts], 1
        )
    if spec.dtype == "uint8":
        return rng.integers(int(spec.high) + 1, size=(n, *spec.shape), dtype=np.uint8)
    return rng.standard_normal((n, *spec.shape)).astype(spec.dtype)


def allow(branches: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """Random masks [n, sum of branches] that leave at least one action of each branch."""
    masks = []
    for actions in branches:
        mask = rng.random((n, actions)) < 0.5
        mask[np.arange(n), rng.integers(actions, size=n)] = True
        masks.append(mask)
    return np.concatenate(masks, 1).astype(np.float32)


def _drawn(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """What Unity executes [n, size]."""
    parts = [outputs[name].astype(np.float32) for name in (CONTINUOUS, DISCRETE) if name in outputs]
    return np.concatenate(parts, -1)


def _masked(signature: Signature, role: Role, runner: Any, rng: np.random.Generator, found: Parity) -> None:
    """Forbidden actions are never taken."""
    feed = signature.feed(draw(role, rng, SAMPLES), np.zeros((SAMPLES, signature.memory), np.float32))
    feed[MASKS] = allow(signature.branches, rng, SAMPLES)
    outputs = run(runner, feed)
    begin = 0
    for branch, actions in enumerate(signature.branches):
        allowed = feed[MASKS][:, begin : begin + actions]
        begin += actions
        for name in (DISCRETE, DISCRETE_MODE):
            taken = np.take_along_axis(allowed, outputs[name][:, branch : branch + 1].astype(np.int64), 1)
            if not taken.all():
                found.fail(
                    f"{name} took {int((taken == 0).sum())} of {SAMPLES} times what is forbidden in branch {branch}"
                )
