"""From a batch to a step: the only place that owns optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, LossReport, ParameterGroup
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs
from algorithm.networks import FlatParameters, InferenceCopy, Noise
from algorithm.networks.flat_parameters import State
from algorithm.networks.precision import set_precision
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.optimizers import Optimizer, make_optimizer
from algorithm.training.placement import Placement
from algorithm.training.rewards import RewardNormalizer


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
        self.checks_gradient = (
            self.device.type == "cpu"
        )  # at each gradient: cheaper than undoing, where nothing is waited for
        self.updates = 0
        self._kept_updates = torch.zeros((), dtype=torch.int64, device=self.device)
        self._last_kept_update = torch.zeros(
            (), dtype=torch.int64, device=self.device
        )  # updates up to the last kept one
        self.rows_seen = 0  # valid rows observed; schedules run on them
        self.reward_normalizer = RewardNormalizer(agent.reward_transform, role.lanes)
        modules = {name: auxiliary.build(agent.policy.torso, role) for name, auxiliary in auxiliaries.items()}
        groups = {
            **agent.groups,
            **{f"auxiliary/{name}": _make_group(auxiliaries[name], m) for name, m in modules.items()},
        }
        # Before the policy becomes views of flat tensors on its device.
        acting_policy = deepcopy(agent.policy) if placement.acting != placement.learning else None
        targets = {**agent.target_networks, **_collect_targets(auxiliaries)}
        statistics = agent.running_statistics()
        self._agent_observes = bool(statistics)
        self.parameters = FlatParameters(
            {name: group.module for name, group in groups.items()},
            targets,
            {
                "returns": self.reward_normalizer.moments,
                **statistics,
                **{f"auxiliary/{name}": module for name, module in modules.items()},
            },
            self.device,
        )
        networks = [*(group.module for group in groups.values()), *(copy.network for copy in targets.values())]
        set_precision(placement.precision, [agent.policy, *networks])
        self.noise = Noise(networks, self.device)
        self.noise.resample()
        self._acting_copy = InferenceCopy(agent.policy, acting_policy, placement.acting) if acting_policy else None
        self._steps = [self._make_group_step(name, group) for name, group in groups.items()]
        # Everything an update changes; a bad gradient must leave all of it as it was.
        self._undoable_tensors = [self.parameters.all_parameters, *(step.optimizer.moments for step in self._steps)]

    def grow(self, lanes: int) -> None:
        """Add lanes to the statistics of returns, up to `lanes` lanes."""
        self.reward_normalizer.grow(lanes)

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics from a collected rollout: once for each, and never from a replayed window."""
        self.rows_seen += int(rollout.valid.sum())
        self.reward_normalizer.observe(rollout)
        if self._agent_observes:
            self.agent.observe(rollout)
        for auxiliary in self.auxiliaries.values():
            auxiliary.observe(rollout)
        self._mark_outdated()

    def learn(self, rollout: Rollout) -> LossReport:
        """One step from one batch. An infinite or undefined gradient changes nothing, and is counted in `skipped_updates`."""
        batch = rollout.convert(self._upload)
        batch.reward = self._compute_reward(batch)
        losses, report = self.agent.loss(batch)
        auxiliary_losses = {
            name: auxiliary.loss(self._make_view(batch, report.features))
            for name, auxiliary in self.auxiliaries.items()
        }
        self.parameters.gradient.zero_()
        reduce(torch.add, [*losses.values(), *auxiliary_losses.values()]).backward()
        self._apply_gradients()
        self.updates += 1
        # Behind the step, so that what acts until the next one is what that one begins with (Fortunato et al. 2018).
        self.noise.resample()
        self._mark_outdated()
        auxiliary_metrics = {f"train/{name}_loss": loss.detach() for name, loss in auxiliary_losses.items()}
        # Without the features, which hold the whole graph of this update.
        metrics, errors = report.compute_metrics, report.compute_td_errors
        return LossReport(lambda: {**metrics(), **auxiliary_metrics}, lambda: errors().cpu().numpy())

    @property
    def skipped_updates(self) -> int:
        """Updates that were undone because of their gradient."""
        return self.updates - int(self._kept_updates)

    @property
    def consecutive_skips(self) -> int:
        """Skipped updates since the last good one. Like `skipped_updates` it waits for the device."""
        return self.updates - int(self._last_kept_update)

    def load_parameters(self, state: State) -> None:
        """Take over weights and copies from elsewhere and forget the moments."""
        self.parameters.load(state)
        for step in self._steps:
            step.optimizer.moments.zero_()
        self._mark_outdated()

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the parameters."""
        moments = {f"moments/{step.name}": step.optimizer.moments.cpu().clone() for step in self._steps}
        counters = {
            "updates": torch.tensor(self.updates),
            "kept": self._kept_updates.cpu(),
            "seen": torch.tensor(self.rows_seen),
        }
        others = {
            "returns": torch.from_numpy(self.reward_normalizer.running_sums.copy()),
            "noise": self.noise.values.cpu().clone(),
        }
        return {**moments, **counters, **others}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, behind the parameters."""
        for step in self._steps:
            step.optimizer.moments.copy_(state[f"moments/{step.name}"])
        self.updates, self.rows_seen = int(state["updates"]), int(state["seen"])
        self._kept_updates.copy_(state["kept"])
        self._last_kept_update.fill_(self.updates)
        self.reward_normalizer.running_sums[:] = state["returns"].numpy()
        self.noise.values.copy_(state["noise"])
        self._mark_outdated()

    def _mark_outdated(self) -> None:
        """Let the copy that acts, where there is one, fetch what the networks have become."""
        if self._acting_copy:
            self._acting_copy.is_outdated = True

    @torch.inference_mode()
    def _apply_gradients(self) -> None:
        """Clip and step each group, then sync; nothing changes where the gradient is not finite."""
        finite = sum(step.clip(self.checks_gradient) for step in self._steps) < torch.inf
        if not self.checks_gradient:
            self._step_or_undo(finite)
        elif finite:
            self._step_groups()
        self._kept_updates += finite
        self._last_kept_update.masked_fill_(torch.as_tensor(finite), self.updates + 1)

    def _step_groups(self) -> None:
        progress = min(1.0, self.rows_seen / self.max_step) if self.max_step else 0.0
        for step in self._steps:
            step(progress)
        self.agent.update_targets(self.updates + 1)
        for auxiliary in self.auxiliaries.values():
            auxiliary.update_targets()

    def _step_or_undo(self, finite: Tensor) -> None:
        before = [tensor.clone() for tensor in self._undoable_tensors]
        self._step_groups()
        for tensor, old in zip(self._undoable_tensors, before, strict=True):
            torch.where(finite, tensor, old, out=tensor)

    def _compute_reward(self, batch: Rollout) -> Tensor:
        reward = self.reward_normalizer.scale(batch.reward)
        for auxiliary in self.auxiliaries.values():
            with torch.no_grad():
                bonus = auxiliary.reward(self._make_view(batch, None))
            if bonus is not None:
                reward = torch.cat((reward[: batch.burn_in], reward[batch.burn_in :] + bonus))
        return reward

    def _make_view(self, batch: Rollout, features: Tensor | None) -> AuxiliaryInputs:
        agent = self.agent
        if features is None:
            features = agent.features(batch)
        return AuxiliaryInputs(
            rollout=batch.drop_burn_in(),
            features=features,
            encode=agent.encode,
        )

    def _upload(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda" or not array.size:
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)  # torch keeps it until the copy is done

    def _make_group_step(self, name: str, group: ParameterGroup) -> _GroupStep:
        part = self.parameters.group_slices[name]
        vector, gradient = self.parameters.vector[part], self.parameters.gradient[part]
        return _GroupStep(name, group, vector, gradient, make_optimizer(group, len(vector), self.device))


@dataclass(frozen=True)
class _GroupStep:
    """Clip and step one group of the parameters."""

    name: str
    group: ParameterGroup
    vector: Tensor
    gradient: Tensor
    optimizer: Optimizer

    def clip(self, checks_first: bool) -> Tensor | float:
        """Clip, and return the norm of the gradient as it was; who `checks_first` first leaves alone what is short enough."""
        norm = self.gradient.dot(self.gradient).sqrt()  # a third of what torch's norm costs
        if checks_first and (short_norm := norm.item()) <= self.group.max_grad_norm:
            return short_norm
        self.gradient.div_((norm / self.group.max_grad_norm).clamp(min=1))
        return norm

    def __call__(self, progress: float) -> None:
        """Step."""
        scale = 1 - progress if self.group.learning_rate_schedule == "linear" else 1
        self.optimizer.step(self.vector, self.gradient, self.group.learning_rate * scale)


def _make_group(auxiliary: Auxiliary, module: torch.nn.Module) -> ParameterGroup:
    return ParameterGroup(module=module, learning_rate=auxiliary.learning_rate, max_grad_norm=auxiliary.max_grad_norm)


def _collect_targets(auxiliaries: Mapping[str, Auxiliary]):
    return {
        f"auxiliary/{name}/{copy}": target
        for name, auxiliary in auxiliaries.items()
        for copy, target in auxiliary.make_target_networks().items()
    }
