"""The auxiliaries of a learner: their modules, rewards, losses, and the gradients that they add."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent, ParameterGroup, unroll
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.errors import UserError
from algorithm.networks import TargetNetwork, Torso
from algorithm.rollout import Rollout
from algorithm.specs import Role

LOG = logging.getLogger(__name__)
PREFIX = "auxiliary/"  # before the name of an auxiliary in the names of groups, target networks and saved tensors


class AuxiliarySet:
    """The auxiliaries of one agent, as one object.

    Raises:
        UserError: an auxiliary does not suit the agent.

    Attributes:
        modules: the trained modules by `auxiliary/<name>`, for auxiliaries that have one; their buffers are running
            statistics.
        groups: the parameter groups of these modules, by the same names.
        target_networks: the target networks of all auxiliaries, by `auxiliary/<name>/<key>`.
        metrics: scalars of the last rewards and losses, by name.
        n_records: the number of values that are stored with each row.
        adaptive_groups: the names of the groups whose losses are adaptive.
    """

    def __init__(self, auxiliaries: Mapping[str, Auxiliary], agent: Agent, role: Role):
        self.agent, self.by_name = agent, auxiliaries
        self.modules: dict[str, nn.Module] = {}
        self.groups: dict[str, ParameterGroup] = {}
        self.target_networks: dict[str, TargetNetwork[Any]] = {}
        has_natural_step = any(group.optimizer == "natural" for group in agent.groups.values())
        for name, auxiliary in auxiliaries.items():
            if auxiliary.shapes_features and has_natural_step:
                raise UserError(
                    f"auxiliaries.{name} shapes the features of the policy, which trust_region full does not support, "
                    "since the length of a gradient has no effect on its step; use trust_region efficient"
                )
            auxiliary.name = name
            try:
                module = auxiliary.build(agent, role)
            except ValueError as error:
                raise UserError(f"auxiliaries.{name}: {error}") from error
            if module is not None:
                self.modules[PREFIX + name] = module
                self.groups[PREFIX + name] = ParameterGroup(
                    module=module,
                    learning_rate=auxiliary.settings.learning_rate,
                    max_grad_norm=auxiliary.settings.max_grad_norm,
                )
            for key, target in auxiliary.make_target_networks().items():
                self.target_networks[f"{PREFIX}{name}/{key}"] = target
        parts = (part for module in self.modules.values() for part in module.modules())
        self._torsos = [part for part in parts if isinstance(part, Torso)]  # whose encoders may normalize observations
        self._reported: set[str] = set()  # auxiliaries whose last rewards were not finite
        self.metrics: dict[str, Tensor] = {}
        self.n_records = sum(auxiliary.has_record for auxiliary in auxiliaries.values())
        self.adaptive_groups = {PREFIX + name for name, auxiliary in auxiliaries.items() if auxiliary.adaptive}

    def grow(self, lanes: int) -> None:
        """Add lanes, so that there are `lanes` lanes."""
        for auxiliary in self.by_name.values():
            auxiliary.grow(lanes)

    def observe(self, rollout: Rollout) -> None:
        """Update the running statistics from a collected rollout."""
        obs = {name: value[:-1] for name, value in rollout.obs.items()}
        for torso in self._torsos:
            torso.observe(obs, rollout.valid)
        for auxiliary in self.by_name.values():
            auxiliary.observe(rollout)

    @torch.no_grad()
    def record(self, rollout: Rollout, upload: Callable[[np.ndarray], Tensor]) -> Rollout:
        """Return a collected rollout with the values that are stored with it.

        Args:
            rollout: the rollout, in numpy.
            upload: returns an array as a tensor on the device.
        """
        make_inputs = cache(lambda: self._make_inputs(rollout.convert(upload)))
        records = {name: auxiliary.record(rollout, make_inputs) for name, auxiliary in self.by_name.items()}
        records = {name: values for name, values in records.items() if values is not None}
        return replace(rollout, records=records) if records else rollout

    @torch.no_grad()
    def add_rewards(self, batch: Rollout) -> None:
        """Add rewards to a batch whose rewards are transformed: to `bonuses`, or weighted to the rewards.

        The former for an agent with a value output for each stream, the latter for all other agents.
        """
        inputs = self._make_inputs(batch)
        bonuses = {}
        for name, auxiliary in self.by_name.items():
            bonus = auxiliary.reward(inputs)
            if bonus is None:
                continue
            bonus = self._replace_nonfinite(name, bonus, batch)
            self.metrics[f"train/{name}_reward"] = masked_mean(bonus, inputs.rollout.valid)
            bonus = torch.cat((bonus.new_zeros((batch.burn_in, bonus.shape[1])), bonus))
            if name in self.agent.streams:
                bonuses[name] = bonus
            else:
                batch.reward = torch.add(batch.reward, bonus, alpha=auxiliary.reward_weight)
        batch.bonuses = bonuses

    def compute_losses(self, batch: Rollout, features: Tensor | None) -> dict[str, Tensor]:
        """Return the losses of a batch by group, given the features of the agent's result, if it has any.

        An auxiliary without a loss in this update has none here, and keeps the metrics of its last one.
        """
        losses: dict[str, Tensor] = {}
        for name, auxiliary in self.by_name.items():
            has_parameters = PREFIX + name in self.modules or auxiliary.agent_groups
            if not has_parameters or not auxiliary.has_loss(self.agent.update):
                continue
            if features is None and PREFIX + name in self.modules:
                features = unroll(self.agent.policy.torso, batch)  # with gradient
            loss, values = auxiliary.loss(self._make_inputs(batch, features, with_gradient=auxiliary.shapes_features))
            losses[PREFIX + name] = loss
            self.metrics[f"train/{name}_loss"] = loss.detach()
            self.metrics |= {f"train/{name}_{key}": value.detach() for key, value in values.items()}
        return losses

    def find_trained_groups(self, losses: Collection[str]) -> set[str]:
        """Return the groups that losses of `compute_losses` train, given the groups by which they are returned."""
        agent_groups = (each.agent_groups for name, each in self.by_name.items() if PREFIX + name in losses)
        return {*losses}.union(*agent_groups)

    def update_targets(self) -> None:
        """Update the target networks."""
        for auxiliary in self.by_name.values():
            auxiliary.update_targets()

    def state(self) -> dict[str, Tensor]:
        """Return what is kept by lane, by `auxiliary/<name>/<key>`."""
        return {
            f"{PREFIX}{name}/{key}": value
            for name, auxiliary in self.by_name.items()
            for key, value in auxiliary.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, from a mapping that may hold further names."""
        for name, auxiliary in self.by_name.items():
            prefix = f"{PREFIX}{name}/"
            auxiliary.restore(
                {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            )

    def _make_inputs(
        self, batch: Rollout, features: Tensor | None = None, *, with_gradient: bool = False
    ) -> AuxiliaryInputs:
        """Return the inputs of auxiliaries; without `features`, these are computed when they are read."""

        def compute_features() -> Tensor:
            known = self.agent.features(batch) if features is None else features
            return known if with_gradient else known.detach()

        encode = self.agent.encode if with_gradient else torch.no_grad()(self.agent.encode)
        torso = self.agent.policy.torso
        return AuxiliaryInputs(
            batch=batch, torso=torso, compute_features=compute_features, encode=encode, update=self.agent.update
        )

    def _replace_nonfinite(self, name: str, bonus: Tensor, batch: Rollout) -> Tensor:
        """Return rewards with 0 in place of NaN and infinity, which are logged once until all are finite again."""
        finite = bonus.isfinite()
        if bool(finite.all()):
            self._reported.discard(name)
            return bonus
        if name not in self._reported:
            self._reported.add(name)
            row, column = (~finite).nonzero()[0].tolist()
            fault = "NaN" if bonus[row, column].isnan() else "infinite"
            LOG.warning(
                f"the reward of auxiliaries.{name} is {fault} for lane {batch.lane[column]}; such rewards count as 0"
            )
        return bonus.where(finite, 0.0)


class Gradients:
    """The gradient of the losses of an agent and its auxiliaries.

    That of an adaptive auxiliary loss is added to a layer only if its cosine with the agent's is positive. A layer is
    a module with parameters of its own, such as one linear layer. (The weight sign(cosine), with 0 in place
    of -1; Advanced-Soft-Actor-Critic's `use_adaptive`.) The gradient of the auxiliary's own module is added as it is.

    Args:
        modules: the modules of the agent's parameter groups.
        gradient: the flat gradient of all parameter groups, in which the parameters of each module have their slices.
    """

    def __init__(self, modules: list[nn.Module], gradient: Tensor):
        self._gradient = gradient
        self._layers: list[slice] = []  # the slice of the gradient of each layer
        for layer in (layer for module in modules for layer in module.modules()):
            if parameters := list(layer.parameters(recurse=False)):
                start = min(each.grad.storage_offset() for each in parameters if each.grad is not None)
                self._layers.append(slice(start, start + sum(each.numel() for each in parameters)))

    def compute(self, losses: Iterable[Tensor], auxiliary_losses: Mapping[str, Tensor], adaptive: Set[str]) -> None:
        """Write the gradient of the losses of the agent and its auxiliaries, some of them `adaptive`."""
        self._gradient.zero_()
        remaining = list(losses)
        adaptive_losses = [loss for name, loss in auxiliary_losses.items() if name in adaptive]
        if adaptive_losses:
            if remaining:
                torch.autograd.backward(remaining, retain_graph=True)
            task = self._gradient.clone()
            total = task.clone()
            for loss in adaptive_losses:
                self._gradient.zero_()
                loss.backward(retain_graph=True)
                for layer in self._layers:
                    agrees = self._gradient[layer] @ task[layer] > 0
                    self._gradient[layer] *= agrees
                total += self._gradient
            self._gradient.copy_(total)
            remaining = []
        remaining += [loss for name, loss in auxiliary_losses.items() if name not in adaptive]
        if remaining:
            torch.autograd.backward(remaining)
