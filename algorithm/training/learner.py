"""Learning: from a batch to a gradient, and from a gradient to a step of the optimizers, or a reset of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Set
from copy import deepcopy
from dataclasses import replace
from functools import partial, reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, LossResult, ParameterReset
from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.networks import FlatParameters, InferenceCopy, Noise
from algorithm.networks.flat_parameters import Place
from algorithm.networks.normalization import find_batch_norms
from algorithm.networks.passes import use_manual_passes
from algorithm.networks.precision import CPU, Placement, set_precision, upload
from algorithm.rollout import DEMONSTRATED, TD_ERROR, Rollout
from algorithm.specs import Role
from algorithm.training.auxiliary_set import AuxiliarySet, Gradients
from algorithm.training.optimizers import make_optimizers
from algorithm.training.rewards import RewardNormalizer


class Learner:
    """A learner of the parameters of one agent and of its auxiliaries, for any algorithm.

    An update is `compute_gradients`, then `apply_gradients`. Only the flat gradient (`parameters.gradient`) passes from
    one to the other, so that it can be summed over several learners in between.

    Args:
        max_step: the value of `rows_seen` at which linear learning rates are 0; None for constant ones.
        place: returns the shared tensor in place of one that other processes share: of the parameters, the running
            statistics, the moments of the optimizers, and the counters. By default nothing is shared.
    """

    def __init__(
        self,
        agent: Agent,
        role: Role,
        auxiliaries: Mapping[str, Auxiliary],
        max_step: int | None,
        placement: Placement | None = None,
        place: Place = lambda tensor: tensor,
    ):
        self.agent = agent
        self.max_step = max_step
        placement = placement or Placement()
        self.device = placement.learning
        self._upload = partial(upload, device=self.device)
        # Before each step, gradients are checked. On a device that would wait for this, the step is undone instead.
        self.checks_gradient = self.device.type == "cpu"
        self._counts = place(torch.zeros(2, dtype=torch.int64, device=CPU)).numpy()  # updates and valid collected rows
        self.run_counts = [self._counts]  # of the learners of all roles of the run, if its builder sets them
        # The number of skipped updates, and of those since the last update that was not skipped.
        self._skips = place(torch.zeros(2, dtype=torch.int64, device=self.device))
        self.reward_normalizer = RewardNormalizer(agent.reward_transform, role.lanes)
        self.auxiliaries = AuxiliarySet(auxiliaries, agent, role)
        groups = {**agent.groups, **self.auxiliaries.groups}
        # The copy is made before the policy's parameters become views of flat tensors on the learning device.
        acting_policy = deepcopy(agent.policy) if placement.acting != placement.learning else None
        targets = {**agent.target_networks, **self.auxiliaries.target_networks}
        statistics = agent.running_statistics()
        self._agent_observes = bool(statistics)
        self.parameters = FlatParameters(
            {name: group.module for name, group in groups.items()},
            targets,
            {"returns": self.reward_normalizer.moments, **statistics, **self.auxiliaries.modules},
            self.device,
            place,
        )
        self._gradients = Gradients([group.module for group in agent.groups.values()], self.parameters.gradient)
        networks = [*(group.module for group in groups.values()), *(target.network for target in targets.values())]
        set_precision(placement.precision, [agent.policy, *networks])
        use_manual_passes([agent.policy, *networks])
        self.noise = Noise(networks, self.device)
        self.noise.resample()
        self._acting_copy = InferenceCopy(agent.policy, acting_policy, placement.acting) if acting_policy else None
        self._has_natural_step = any(group.optimizer == "natural" for group in groups.values())
        self._idle_groups: Set[str] = set()  # the groups without a loss in the last batch, which are not stepped
        self.optimizers = make_optimizers(groups, self.parameters, lambda: agent.divergence(self._batch), place)
        # Everything that an update changes: an update with a gradient that is not finite leaves it unchanged.
        self._undoable_tensors = [self.parameters.all_parameters, *(each.moments for each in self.optimizers)]

    def synchronize(self) -> None:
        """Copy what several learners share from the first of them; a learner without others has nothing to copy."""

    def grow(self, lanes: int) -> None:
        """Add lanes to all values that are kept by lane, so that there are `lanes` lanes."""
        self.reward_normalizer.grow(lanes)
        self.auxiliaries.grow(lanes)

    def observe(self, rollout: Rollout) -> None:
        """Update running statistics with a collected rollout: once with each, and never with a replayed batch."""
        self._counts[1] += rollout.valid.sum()
        self.reward_normalizer.observe(rollout)
        if self._agent_observes:
            self.agent.observe(rollout)
        self.auxiliaries.observe(rollout)
        self._mark_outdated()

    def record(self, rollout: Rollout) -> Rollout:
        """Return a collected rollout with the values that auxiliaries store with it. Called once with each."""
        return self.auxiliaries.record(rollout, self._upload)

    def record_td_errors(self, rollout: Rollout) -> Rollout:
        """Return a collected rollout with the TD errors that the agent computes on it, in the record `TD_ERROR`."""
        batch = self._begin_update(rollout)
        result = self.agent.loss(batch)[1]
        assert result.compute_row_errors is not None  # as of every agent with a replay
        errors = (batch.valid * result.compute_row_errors().abs()).cpu().numpy()
        return replace(rollout, records={**rollout.records, TD_ERROR: errors})

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Rollout:
        """Return a collected rollout as `Agent.prepare` prepares it for its epochs; both are in numpy.

        The result has the observation after its last row only if there are auxiliaries with a loss, which read it.
        """
        batch = rollout.convert(self._upload)
        self._transform_rewards(batch)
        prepared = self.agent.prepare(batch).convert(lambda tensor: tensor.cpu().numpy())
        if self.auxiliaries.modules:
            return prepared
        return replace(prepared, obs={name: value[: len(prepared)] for name, value in prepared.obs.items()})

    def compute_gradients(self, rollout: Rollout) -> LossResult:
        """Write the gradient of the losses of a batch to `parameters.gradient`; change nothing else.

        Args:
            rollout: a collected rollout, a minibatch of a prepared one, or a replayed batch, in numpy.

        Returns:
            The result of the losses. Its TD errors are in numpy.
        """
        batch = self._begin_update(rollout)
        if self._has_natural_step:  # which comes after all other steps
            self._batch = batch
        losses, result = self.agent.loss(batch)
        auxiliary_losses = self.auxiliaries.compute_losses(batch, result.features)
        trained_groups = losses.keys() | self.auxiliaries.find_trained_groups(auxiliary_losses.keys())
        self._idle_groups = self.parameters.group_slices.keys() - trained_groups
        self._gradients.compute(losses.values(), auxiliary_losses, self.auxiliaries.adaptive_groups)
        metrics, auxiliary_metrics = result.compute_metrics, self.auxiliaries.metrics.copy()
        errors = result.compute_td_errors

        def compute_metrics() -> dict[str, Tensor]:
            optimizers = [each for each in self.optimizers if each.name not in self._idle_groups]
            step_metrics = [optimizer.compute_metrics(self.agent.progress) for optimizer in optimizers]
            return reduce(or_, [metrics(), auxiliary_metrics, *step_metrics])

        # Without features and losses, which keep the graph of this update alive.
        return LossResult(compute_metrics, lambda: errors().cpu().numpy(), kl_excess=result.kl_excess)

    def apply_gradients(self) -> None:
        """Step the parameters by `parameters.gradient`, update the target networks, and resample the noise.

        A gradient that is not finite changes no parameter; the update counts in `skipped_updates`. A reset of the
        agent's parameters that is due follows the step.
        """
        self._step_if_finite()
        self._counts[0] += 1
        if self.agent.reset and self.updates % self.agent.reset.every == 0:
            self._reset_agent(self.agent.reset)
        # After the step, so that the policy acts with the noise of the next update (Fortunato et al. 2018).
        self.noise.resample()
        self._mark_outdated()

    def pretrain(self, auxiliary: Auxiliary) -> tuple[float, float]:
        """Make the updates of an auxiliary before the run, in which nothing else is trained.

        Target networks are then copies of their sources. These updates are not counted.

        Returns:
            The first and the last loss, 0 without updates.
        """
        loss = first_loss = torch.zeros(())
        self._idle_groups = self.parameters.group_slices.keys() - auxiliary.agent_groups
        if self._agent_observes:  # otherwise the first rollout would change the inputs of the trained policy
            self.agent.observe(auxiliary.make_pretraining_rollout())
        for number in range(auxiliary.pretraining_updates):
            loss = auxiliary.pretraining_loss(number, self.device)
            first_loss = first_loss if number else loss.detach()
            self._gradients.compute([loss], {}, set())
            self._step_if_finite()
            self.parameters.fetch()  # if other processes share them
            self.noise.resample()
        for target in self.agent.target_networks.values():
            if target.source is not None:
                target.polyak_update(1.0)
        self._mark_outdated()
        return float(first_loss), float(loss.detach())

    @property
    def updates(self) -> int:
        """The number of updates, with those that were skipped."""
        return int(self._counts[0])

    @property
    def rows_seen(self) -> int:
        """The number of valid rows that were collected, of all roles of the run."""
        return sum(int(counts[1]) for counts in self.run_counts)

    @property
    def skipped_updates(self) -> int:
        """Return the number of updates whose gradient was not finite; waits for the device."""
        return int(self._skips[0])

    @property
    def consecutive_skips(self) -> int:
        """Return the number of skipped updates since the last one that was not; waits for the device."""
        return int(self._skips[1])

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs in addition to the parameters."""
        moments = {f"moments/{each.name}": each.moments.cpu().clone() for each in self.optimizers}
        updates, seen = (torch.tensor(count) for count in self._counts.tolist())
        counters = {"updates": updates, "kept": updates - self._skips[0].cpu(), "seen": seen}
        return {**moments, **counters, **self.own_state()}

    def own_state(self) -> dict[str, Tensor]:
        """Return the part of `state` that processes with shared parameters do not share."""
        returns = torch.from_numpy(self.reward_normalizer.running_sums.copy())
        return {"returns": returns, "noise": self.noise.values.cpu().clone(), **self.auxiliaries.state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, after the parameters have been loaded."""
        for optimizer in self.optimizers:
            optimizer.moments.copy_(state[f"moments/{optimizer.name}"])
        self._counts[:] = int(state["updates"]), int(state["seen"])
        self._skips[0], self._skips[1] = self.updates - int(state["kept"]), 0
        self.restore_own(state)

    def restore_own(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `own_state` returned."""
        self.reward_normalizer.running_sums[:] = state["returns"].numpy()
        self.noise.values.copy_(state["noise"])
        self.auxiliaries.restore(state)
        self._mark_outdated()

    @torch.no_grad()
    def _reset_agent(self, reset: ParameterReset) -> None:
        """Reset the parameters of the agent, and set the moments of its optimizers to 0. Auxiliaries are not reset.

        Target networks are reset with the same new parameters as their sources, and the running statistics of batch
        norms in the same way.
        """
        parameters = self.parameters
        modules = [group.module for group in reset.make_groups().values()]
        new_vector = torch.cat([parameter.flatten() for module in modules for parameter in module.parameters()])
        new_statistics = torch.cat([torch.zeros(0), *(norm.running for norm in find_batch_norms(modules))])
        changed = []  # tensors of the agent and their old values
        for tensor, new in ((parameters.vector, new_vector), (parameters.batch_statistics, new_statistics)):
            part = tensor[: len(new)]
            changed.append((part, part.clone()))
            part.copy_(new)
        for target in self.agent.target_networks.values():  # whose sources have the new parameters now
            target.polyak_update(1 - reset.shrink)
        for part, old in changed:
            part.lerp_(old, reset.shrink)
        parameters.increments.zero_()
        parameters.complete_step()
        parameters.apply_target_constraints()
        for optimizer in self.optimizers:
            if optimizer.name in self.agent.groups:
                optimizer.moments.zero_()

    def _mark_outdated(self) -> None:
        """Mark the copy of the policy that acts, if there is one: it fetches the parameters before it acts again."""
        if self._acting_copy:
            self._acting_copy.is_outdated = True

    @torch.inference_mode()
    def _step_if_finite(self) -> None:
        """Clip and step each group, then update the targets; nothing changes if the gradient is not finite."""
        finite = sum(optimizer.clip(self.checks_gradient) for optimizer in self.optimizers) < torch.inf
        if not self.checks_gradient or (finite and self._has_natural_step):
            before = [tensor.clone() for tensor in self._undoable_tensors]
            is_finite = torch.as_tensor(finite) & self._step_groups()
            for tensor, old in zip(self._undoable_tensors, before, strict=True):  # without waiting for the device
                torch.where(is_finite, tensor, old, out=tensor)
            skipped = 1 - is_finite.long()
            self._skips += skipped
            self._skips[1].mul_(skipped)
        elif finite:
            self._step_groups()
            self._skips[1].zero_()
        else:
            self._skips += 1

    def _compute_progress(self) -> float:
        """Return the fraction of the run that is done, for schedules; 0 for a run without an end."""
        return min(1.0, self.rows_seen / self.max_step) if self.max_step else 0.0

    def _step_groups(self) -> bool:
        """Step each group, commit batch statistics, then update the targets. Return whether all steps are finite."""
        progress = self._compute_progress()
        stepped = [each for each in self.optimizers if each.name not in self._idle_groups]
        is_finite = all([optimizer.step(optimizer.compute_rate(progress)) for optimizer in stepped])
        self.parameters.complete_step()
        self.agent.update_targets(self.updates + 1)
        self.auxiliaries.update_targets()
        self.parameters.apply_target_constraints()
        return is_finite

    def _begin_update(self, rollout: Rollout) -> Rollout:
        """Set the numbers that the agent reads in `loss`. Return a batch on the device, with transformed rewards."""
        self.agent.progress, self.agent.update = self._compute_progress(), self.updates + 1
        self.parameters.increments.zero_()  # those of the batch before
        batch = rollout.convert(self._upload)
        if self.agent.needs_behavior and (rollout.index == DEMONSTRATED).any():
            self._set_behavior(batch, np.flatnonzero(rollout.index == DEMONSTRATED))
        if not batch.targets:
            self._transform_rewards(batch)
        return batch

    @torch.no_grad()
    def _set_behavior(self, batch: Rollout, columns: np.ndarray) -> None:
        """Set the statistics of the policy that acted in demonstrations, which are not known.

        The player selects its action almost certainly, so that the ratio of the policy to it is at most about 1. (With
        the present policy as the player, the ratio is 1 also for an action that the policy would not select: there the
        gradient is large, and training of ACER diverged.)
        """
        part = batch.take_columns(columns)
        statistics = self.agent.compute_statistics(part)
        rows = slice(batch.burn_in, None)
        batch.behavior[rows, columns] = self.agent.family.concentrate(statistics, part.raw_action[rows])

    def _transform_rewards(self, batch: Rollout) -> None:
        """Transform the rewards of a batch, and add the rewards of auxiliaries."""
        batch.reward = self.reward_normalizer.scale(batch.reward)
        if self.auxiliaries.by_name:
            self.auxiliaries.add_rewards(batch)
