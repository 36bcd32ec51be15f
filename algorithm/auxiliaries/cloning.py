"""Behavior cloning: the policy is trained to select the actions of demonstrations, before and during the run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.settings import BehaviorCloningSettings
from algorithm.rollout import Rollout
from algorithm.specs import Role


class BehaviorCloning(Auxiliary):
    """A loss of the agent's policy: the negative log density of demonstrated actions.

    It is minimized alone in `pretraining_updates` updates before the first env step, and then with `strength` in every
    update of the agent. Its gradient reaches the policy and its torso.
    """

    Settings = BehaviorCloningSettings
    settings: BehaviorCloningSettings
    needs_demonstrations = True
    shapes_features = True

    def build(self, agent: Agent, role: Role) -> nn.Module | None:
        self.agent = agent
        self.pretraining_updates = self.settings.pretraining_updates
        if not self.settings.strength and not self.pretraining_updates:
            raise ValueError("strength and pretraining_updates are 0: it has no effect")
        parameters = set(agent.policy.parameters())
        self.agent_groups = {
            name for name, group in agent.groups.items() if not parameters.isdisjoint(group.module.parameters())
        }
        if not agent.policy.is_differentiable:
            raise ValueError("the actions of discrete_dqn_like have no probabilities that a loss could train")
        if self.open_demonstrations:  # not in a process that only acts
            self.replay = self.open_demonstrations(None if agent.state_size else 1)
        return None

    def has_loss(self, update: int) -> bool:
        return self._compute_strength() > 0 and super().has_loss(update)

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        batch = self._sample(inputs.update, inputs.batch.reward.device)
        loss = self.compute_log_loss(batch)
        return self._compute_strength() * loss, {"log_prob": -loss}

    def pretraining_loss(self, number: int, device: torch.device) -> Tensor:
        """Return the loss of the `number`-th update before the run, with weight 1."""
        return self.compute_log_loss(self._sample(-number, device))

    def make_pretraining_rollout(self) -> Rollout:
        return self.replay.make_rollout()

    def compute_log_loss(self, batch: Rollout) -> Tensor:
        """Return the mean of -log pi of the actions in valid rows."""
        rows = batch.drop_burn_in()
        policy = self.agent.family(self.agent.compute_statistics(batch))
        return masked_mean(-policy.log_prob(rows.raw_action), rows.valid)

    def _sample(self, number: int, device: torch.device) -> Rollout:
        batch = self.replay.sample(self.settings.batch_size, abs(2 * number) + (number > 0))
        return batch.convert(lambda array: torch.from_numpy(array).to(device))

    def _compute_strength(self) -> float:
        """Return the weight of the loss at the agent's progress."""
        if self.settings.end is None:
            return self.settings.strength
        return self.settings.strength * max(0.0, 1 - self.agent.progress / self.settings.end)
