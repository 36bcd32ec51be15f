"""From a batch to a step: the only place that owns optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, Group, Report
from algorithm.auxiliaries.auxiliary import Auxiliary, View
from algorithm.networks import ActingCopy, Noise, Parameters
from algorithm.networks.flat_parameters import State
from algorithm.networks.precision import learn_in
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.optimizers import Optimizer, make_optimizer
from algorithm.training.placement import Placement
from algorithm.training.rewards import ReturnScale


class Learner:
    """Learns the parameters of one agent and of its auxiliaries from batches, whatever the algorithm.

    `max_step` is the number of rows at which linear schedules end.
    """

    def __init__(
        self,
        agent: Agent,
        role: Role,
        auxiliaries: Mapping[str, Auxiliary],
        max_step: int | None,
        placement: Placement | None = None,
    ):
        self.agent = agent
        self.auxiliaries = auxiliaries
        self.max_step = max_step
        placement = placement or Placement()
        self.device = placement.learning
        self.looks = self.device.type == "cpu"  # at each gradient: cheaper than undoing, where nothing is waited for
        self.updates = 0
        self._kept = torch.zeros((), dtype=torch.int64, device=self.device)
        self._good_at = torch.zeros((), dtype=torch.int64, device=self.device)  # updates up to the last kept one
        self.seen = 0  # valid rows observed; schedules run on them
        self.returns = ReturnScale(agent.rewards, role.lanes)
        modules = {name: auxiliary.build(agent.policy.torso, role) for name, auxiliary in auxiliaries.items()}
        groups = {**agent.groups, **{f"auxiliary/{name}": _group(auxiliaries[name], m) for name, m in modules.items()}}
        # Before the policy becomes views of flat tensors on its device.
        twin = deepcopy(agent.policy) if placement.acting != placement.learning else None
        lagging = {**agent.lagging, **_copies(auxiliaries)}
        running = agent.running()
        self._agent_observes = bool(running)
        self.parameters = Parameters(
            {name: group.module for name, group in groups.items()},
            lagging,
            {
                "returns": self.returns.moments,
                **running,
                **{f"auxiliary/{name}": module for name, module in modules.items()},
            },
            self.device,
        )
        networks = [*(group.module for group in groups.values()), *(copy.copy for copy in lagging.values())]
        learn_in(placement.precision, [agent.policy, *networks])
        self.noise = Noise(networks, self.device)
        self.noise.renew()
        self._acting = ActingCopy(agent.policy, twin, placement.acting) if twin else None
        self._steps = [self._group_step(name, group) for name, group in groups.items()]
        # Everything an update changes; a bad gradient must leave all of it as it was.
        self._undoable = [self.parameters.numbers, *(step.optimizer.moments for step in self._steps)]

    def grow(self, lanes: int) -> None:
        """Add lanes to the statistics of returns, up to `lanes` lanes."""
        self.returns.grow(lanes)

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics from a collected rollout: once for each, and never from a replayed window."""
        self.seen += int(rollout.valid.sum())
        self.returns.observe(rollout)
        if self._agent_observes:
            self.agent.observe(rollout)
        for auxiliary in self.auxiliaries.values():
            auxiliary.observe(rollout)
        self._changed()

    def learn(self, rollout: Rollout) -> Report:
        """One step from one batch. An infinite or undefined gradient changes nothing, and is counted in `skipped`."""
        batch = rollout.convert(self._upload)
        batch.reward = self._reward(batch)
        losses, report = self.agent.loss(batch)
        extra = {
            name: auxiliary.loss(self._view(batch, report.features)) for name, auxiliary in self.auxiliaries.items()
        }
        self.parameters.gradient.zero_()
        reduce(torch.add, [*losses.values(), *extra.values()]).backward()
        self._step()
        self.updates += 1
        # Behind the step, so that what acts until the next one is what that one begins with (Fortunato et al. 2018).
        self.noise.renew()
        self._changed()
        told = {f"train/{name}_loss": loss.detach() for name, loss in extra.items()}
        # Without the features, which hold the whole graph of this update.
        metrics, errors = report.metrics, report.errors
        return Report(lambda: {**metrics(), **told}, lambda: errors().cpu().numpy())

    @property
    def skipped(self) -> int:
        """Updates that were undone because of their gradient."""
        return self.updates - int(self._kept)

    @property
    def skipped_in_a_row(self) -> int:
        """Skipped updates since the last good one. Like `skipped` it waits for the device."""
        return self.updates - int(self._good_at)

    def adopt(self, state: State) -> None:
        """Take over weights and copies from elsewhere and forget the moments."""
        self.parameters.load(state)
        for step in self._steps:
            step.optimizer.moments.zero_()
        self._changed()

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the parameters."""
        moments = {f"moments/{step.name}": step.optimizer.moments.cpu().clone() for step in self._steps}
        counters = {"updates": torch.tensor(self.updates), "kept": self._kept.cpu(), "seen": torch.tensor(self.seen)}
        others = {"returns": torch.from_numpy(self.returns.running.copy()), "noise": self.noise.numbers.cpu().clone()}
        return {**moments, **counters, **others}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, behind the parameters."""
        for step in self._steps:
            step.optimizer.moments.copy_(state[f"moments/{step.name}"])
        self.updates, self.seen = int(state["updates"]), int(state["seen"])
        self._kept.copy_(state["kept"])
        self._good_at.fill_(self.updates)
        self.returns.running[:] = state["returns"].numpy()
        self.noise.numbers.copy_(state["noise"])
        self._changed()

    def _changed(self) -> None:
        """Let the copy that acts, where there is one, fetch what the networks have become."""
        if self._acting:
            self._acting.outdated = True

    @torch.inference_mode()
    def _step(self) -> None:
        """Clip and step each group, then sync; nothing changes where the gradient is not finite."""
        finite = sum(step.clip(self.looks) for step in self._steps) < torch.inf
        if not self.looks:
            self._advance_or_undo(finite)
        elif finite:
            self._advance()
        self._kept += finite
        self._good_at.masked_fill_(torch.as_tensor(finite), self.updates + 1)

    def _advance(self) -> None:
        progress = min(1.0, self.seen / self.max_step) if self.max_step else 0.0
        for step in self._steps:
            step(progress)
        self.agent.sync(self.updates + 1)
        for auxiliary in self.auxiliaries.values():
            auxiliary.sync()

    def _advance_or_undo(self, finite: Tensor) -> None:
        before = [tensor.clone() for tensor in self._undoable]
        self._advance()
        for tensor, old in zip(self._undoable, before, strict=True):
            torch.where(finite, tensor, old, out=tensor)

    def _reward(self, batch: Rollout) -> Tensor:
        reward = self.returns.scale(batch.reward)
        for auxiliary in self.auxiliaries.values():
            with torch.no_grad():
                extra = auxiliary.reward(self._view(batch, None))
            if extra is not None:
                reward = torch.cat((reward[: batch.burn_in], reward[batch.burn_in :] + extra))
        return reward

    def _view(self, batch: Rollout, features: Tensor | None) -> View:
        agent = self.agent
        if features is None:
            features = agent.features(batch)
        return View(batch.after_burn_in(), features, lambda: agent.lagged_features(batch), agent.encode, agent.q)

    def _upload(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda" or not array.size:
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)  # torch keeps it until the copy is done

    def _group_step(self, name: str, group: Group) -> _GroupStep:
        where = self.parameters.groups[name]
        vector, gradient = self.parameters.vector[where], self.parameters.gradient[where]
        return _GroupStep(name, group, vector, gradient, make_optimizer(group, len(vector), self.device))


@dataclass(frozen=True)
class _GroupStep:
    """Clip and step one group of the parameters."""

    name: str
    group: Group
    vector: Tensor
    gradient: Tensor
    optimizer: Optimizer

    def clip(self, looks: bool) -> Tensor | float:
        """Clip, and return the norm of the gradient as it was; who `looks` first leaves alone what is short enough."""
        norm = self.gradient.dot(self.gradient).sqrt()  # a third of what torch's norm costs
        if looks and (short := norm.item()) <= self.group.max_grad_norm:
            return short
        self.gradient.div_((norm / self.group.max_grad_norm).clamp(min=1))
        return norm

    def __call__(self, progress: float) -> None:
        """Step."""
        left = 1 - progress if self.group.learning_rate_schedule == "linear" else 1
        self.optimizer.step(self.vector, self.gradient, self.group.learning_rate * left)


def _group(auxiliary: Auxiliary, module: torch.nn.Module) -> Group:
    return Group(module, auxiliary.learning_rate, "constant", "adam", 0.99, 1e-8, False, auxiliary.max_grad_norm)


def _copies(auxiliaries: Mapping[str, Auxiliary]):
    return {
        f"auxiliary/{name}/{copy}": lagging
        for name, auxiliary in auxiliaries.items()
        for copy, lagging in auxiliary.lagging().items()
    }
