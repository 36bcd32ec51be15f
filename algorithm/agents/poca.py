"""Multi-agent posthumous credit assignment (MA-POCA; Cohen et al. 2021, arXiv 2111.05992): PPO for teams.

The policies are those of PPO, and read their own observations only. The critic is trained on all present members of a
team: V is the value of their observations (Eq. 5), and the baseline of a member reads its observation, and observations
and actions of the others (Eq. 7), so that its advantage is what its own action changes (Eq. 8). Both attend over the
members, whose number varies. The value of the team without a member follows the last action of a member that leaves.

Differences from the paper: the targets of a member that has left end there, with the value of its team, instead of the
lambda-return over the later rewards of the team; the critic has no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.actor_critic import make_parameter_group
from algorithm.agents.agent import LossResult
from algorithm.agents.metrics import summarize_update, td_error_stats
from algorithm.agents.ppo import Ppo, compute_error
from algorithm.agents.settings import PocaSettings
from algorithm.losses import squared_error, surrogate_loss
from algorithm.networks import Blueprint, Entities, Torso, batch_statistics
from algorithm.networks.layers import make_orthogonal_linear
from algorithm.rollout import Rollout
from algorithm.specs import TEAM, TEAM_ACTION, TEAM_PRESENT, ObsSpec, Role


class TeamCritic(nn.Module):
    """The values of a team and the baselines of its members, by attention over the members that are present.

    Args:
        torso: Encodes the observation of a member, without a memory.
        action_size: Size of an encoded action.
        size: Largest number of members.
        units: Units of the attention.
    """

    def __init__(self, torso: Torso, action_size: int, size: int, units: int):
        super().__init__()
        self.torso, self.size = torso, size
        features = torso.size
        # A row of zeros is absent, so each row of a member that is present ends with a 1.
        self.value: Any = self._make(features + 1, units)
        self.baseline: Any = self._make(features + action_size + 2, units)

    def _make(self, features: int, units: int) -> nn.Sequential:
        encoder = Entities(units)(ObsSpec((self.size, features), rows=self.size))
        return nn.Sequential(encoder, make_orthogonal_linear(encoder.size, 1, gain=1.0))

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Map observations {name: [..., *shape]} with those of the team -> value [...], baseline [...]."""
        present = obs[TEAM_PRESENT]
        shape = present.shape[:-1]
        axis = len(shape)  # of the members, the first of which is the agent itself
        rows = {
            name: torch.cat((obs[name].unsqueeze(axis), obs[f"{TEAM}{name}"]), axis).flatten(0, axis)
            for name in self.torso.names
        }
        features = self.torso.encode(rows).unflatten(0, (*shape, self.size))
        is_present = present.unsqueeze(-1)
        actions = obs[TEAM_ACTION]
        actions = torch.cat((torch.zeros_like(actions[..., :1, :]), actions), -2)
        is_self = torch.zeros_like(is_present)
        is_self[..., 0, :] = 1
        value = self.value((torch.cat((features, is_present), -1) * is_present).flatten(0, axis - 1))
        baseline_rows = torch.cat((features, actions, is_self, is_present), -1) * is_present
        baseline = self.baseline(baseline_rows.flatten(0, axis - 1))
        return value.view(shape), baseline.view(shape)


class Poca(Ppo):
    """MA-POCA: PPO with the value of a team and a baseline of each of its members."""

    Settings: type[Any] = PocaSettings
    settings: PocaSettings
    has_values = False

    def __init__(self, settings: PocaSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        super().__init__(settings, blueprint, role, rng)
        torso = self.policy.torso.make_encoder()
        self.critic = TeamCritic(torso, role.action_spec.encoded_size, settings.team_size, settings.team_units)
        group = make_parameter_group(settings, self.critic, settings.learning_rate, settings.max_grad_norm)
        self.groups = {**self.groups, "team_critic": group}

    @classmethod
    def supports_streams(cls, settings: Any) -> bool:
        return False

    def prepare(self, rollout: Rollout) -> Rollout:
        actions = rollout.obs[TEAM_ACTION]  # in the row after the one in which they were selected
        obs = {**rollout.obs, TEAM_ACTION: torch.cat((actions[1:], actions[-1:]))}
        v, baseline = self.critic(obs)
        target, _, _ = self.estimate_returns(rollout, v, {})
        targets = {
            "value": target,
            "advantage": target - baseline[:-1],
            "old_value": v[:-1],
            "old_baseline": baseline[:-1],
        }
        return replace(rollout, obs=obs, targets=targets)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        settings, valid, targets = self.settings, rollout.valid, rollout.targets
        rows = slice(len(rollout))
        obs = {name: value[rows] for name, value in rollout.obs.items()}
        with batch_statistics(valid, commits=True):
            features = self.policy.torso.unroll(obs, rollout.first[rows], rollout.memory)
            statistics = self.policy.compute_outputs(features)
            values = torch.stack(self.critic(obs), -1)
        v, baseline = values.detach().unbind(-1)
        with torch.inference_mode():
            update = self.compute_policy_update(rollout, statistics.detach())
            weights = update.weights.unsqueeze(-1)
            errors = [
                compute_error(targets["value"], value, targets[name], update.value_clip)
                for value, name in ((v, "old_value"), (baseline, "old_baseline"))
            ]
            policy_direction = weights * update.direction
            critic_direction = settings.value_coef * weights * torch.stack(errors, -1)

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(targets["value"], v),
                "train/baseline_loss": squared_error(targets["value"], baseline),
                **update.compute_metrics(),
                "train/value": v,
            }
            return summarize_update(update.weights, metric_values, targets["value"], v, update.compute_objectives())

        losses = {
            "actor_critic": surrogate_loss(policy_direction.clone(), statistics),
            "team_critic": surrogate_loss(critic_direction.clone(), values),
        }
        result = LossResult(
            compute_metrics, lambda: td_error_stats(valid, targets["value"] - v), features, kl_excess=update.kl_excess
        )
        return losses, result
