"""Generative adversarial imitation learning, a reward for acting like a player (Ho & Ermon 2016, arXiv 1606.03476).

A discriminator D(x, a) learns to distinguish rows of demonstrations from rows of the policy, which it keeps in a
replay. Its gradient penalty is that of Gulrajani et al. 2017 (arXiv 1704.00028, Eq. 3). After the end of an episode an
agent is in an absorbing state, whose rewards are discriminated, too (Kostrikov et al. 2019, arXiv 1809.02925, section
4.2); here in closed form, since there is one such state.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs
from algorithm.auxiliaries.rnd import NormalizedObservations
from algorithm.auxiliaries.settings import GailSettings
from algorithm.networks import Mlp
from algorithm.networks.layers import make_orthogonal_linear
from algorithm.rollout import Rollout
from algorithm.specs import Role

RAREST_END = 1e-4  # the smallest probability of the end of an episode


class Gail(Auxiliary):
    """A reward from a discriminator of demonstrations and rows of the policy.

    Of discounted time, an agent whose rows end an episode with probability h spends the share
    d = gamma h / (1 - gamma + gamma h) after the end. So there the optimal f is log(d of the player / d of the policy),
    whose reward continues for 1 / (1 - gamma) steps; before, f has the term log((1 - d of the player) / (1 - d of the
    policy)). Without these, an agent would prefer the end of an episode where rewards are negative, and avoid it where
    they are positive.

    With D = sigmoid(f), the reward of a row is f = log D - log(1 - D) with `reward: logit` (Fu et al. 2018, arXiv
    1710.11248), or -log(1 - D), which is never negative and so rewards longer episodes, with `reward: positive`.
    """

    Settings = GailSettings
    settings: GailSettings
    needs_demonstrations = True

    def build(self, agent: Agent, role: Role) -> nn.Module:
        self.family, self.specs = agent.family, {name: role.obs_specs[name] for name in agent.policy.torso.names}
        self.reads_action = self.settings.input == "observation_and_action"
        if self.open_demonstrations:  # not in a process that only acts
            self.player = self.open_demonstrations(1)
            self.player_ends = 1 - float(self.player.demonstrations.alive.mean())
        self.normalizer = NormalizedObservations(agent.policy.torso)
        self.discriminator = Discriminator(
            self.normalizer, self.family.encoded_size if self.reads_action else 0, self.settings.units
        )
        rows = self.settings.policy_rows
        self.obs = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in self.specs.items()}
        self.action = np.zeros((rows, self.family.size), np.float32)
        self.ends = np.zeros(rows, bool)  # whether the row is the last one of a terminated episode
        self.n_rows = 0  # rows of the policy so far; the newest `policy_rows` are kept
        return nn.ModuleDict({"discriminator": self.discriminator, "normalizer": self.normalizer})

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        if not self.settings.strength:
            return None
        rollout = inputs.rollout
        obs = {name: rollout.obs[name][:-1].flatten(0, 1) for name in self.specs}
        before, after = self._compute_time_logits()
        logits = self.discriminator(obs, self._encode(rollout.raw_action.flatten(0, 1))) + before
        transform = nn.Identity() if self.settings.reward == "logit" else nn.functional.softplus
        reward = transform(logits).view_as(rollout.reward)
        if self.settings.crosses_episodes:
            return reward
        gamma = self.settings.gamma
        return reward + ~rollout.alive * (gamma / (1 - gamma)) * transform(torch.tensor(after))

    def _compute_time_logits(self) -> tuple[float, float]:
        """Return the optimal f of the time before the end of an episode, which is added to f, and after it."""
        if self.settings.crosses_episodes:
            return 0.0, 0.0
        ends = np.array([self.player_ends, self.ends[: self.n_rows].mean() if self.n_rows else self.player_ends])
        ends = self.settings.gamma * np.maximum(ends, RAREST_END)
        player, policy = ends / (1 - self.settings.gamma + ends)
        return float(np.log((1 - player) / (1 - policy))), float(np.log(player / policy))

    def has_loss(self, update: int) -> bool:
        return self.n_rows > 0 and super().has_loss(update)

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of Ho & Ermon's Eq. 17, with the policy as class 0, and the gradient penalty."""
        device, count = inputs.batch.reward.device, self.settings.batch_size
        demonstrated = self.player.sample(count, inputs.update).drop_burn_in()
        obs = {name: torch.from_numpy(demonstrated.obs[name][0]).to(device) for name in self.specs}
        player = self.discriminator.read(obs, self._encode(torch.from_numpy(demonstrated.raw_action[0]).to(device)))
        rows = np.random.default_rng((self.player.seed, inputs.update)).integers(
            min(self.n_rows, len(self.action)), size=count
        )
        obs = {name: torch.from_numpy(values[rows]).to(device) for name, values in self.obs.items()}
        policy = self.discriminator.read(obs, self._encode(torch.from_numpy(self.action[rows]).to(device)))
        of_player, of_policy = self.discriminator.decide(player), self.discriminator.decide(policy)
        loss = nn.functional.softplus(-of_player).mean() + nn.functional.softplus(of_policy).mean()
        accuracy = 0.5 * ((of_player > 0).float().mean() + (of_policy < 0).float().mean())
        penalty = self.settings.gradient_penalty * self._compute_penalty(player.detach(), policy.detach())
        return loss + penalty, {"accuracy": accuracy}

    def observe(self, rollout: Rollout) -> None:
        self.normalizer.observe(rollout.obs)
        valid = rollout.valid
        rows = (self.n_rows + np.arange(valid.sum())) % len(self.action)
        for name, values in self.obs.items():
            values[rows] = rollout.obs[name][:-1][valid]
        self.action[rows] = rollout.raw_action[valid]
        self.ends[rows] = ~rollout.alive[valid]
        self.n_rows += len(rows)

    def state(self) -> dict[str, Tensor]:
        arrays = {name: torch.from_numpy(values[: self.n_rows].copy()) for name, values in self._list_kept().items()}
        return {**arrays, "n_rows": torch.tensor(self.n_rows)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.n_rows = int(state["n_rows"])
        for name, values in self._list_kept().items():
            values[: len(state[name])] = state[name].numpy()

    def _list_kept(self) -> dict[str, np.ndarray]:
        """Return what is kept of the rows of the policy, by name."""
        return {
            **{f"obs/{name}": values for name, values in self.obs.items()},
            "action": self.action,
            "ends": self.ends,
        }

    def _encode(self, raw_action: Tensor) -> Tensor:
        return self.family.encode(raw_action) if self.reads_action else raw_action[:, :0]

    def _compute_penalty(self, player: Tensor, policy: Tensor) -> Tensor:
        """Return the mean of (|gradient of f| - 1)^2 between pairs of rows of both."""
        share = torch.rand(len(player), 1, device=player.device)
        between = (share * player + (1 - share) * policy).requires_grad_()
        (gradient,) = torch.autograd.grad(self.discriminator.decide(between).sum(), between, create_graph=True)
        return (gradient.norm(dim=-1) - 1).square().mean()


class Discriminator(nn.Module):
    """The network f of rows of observations and encoded actions [n, A] -> [n].

    Args:
        normalizer: Normalizes the observations.
        action_size: A; 0: no action is read.
        units: Units of both hidden layers.
    """

    def __init__(self, normalizer: NormalizedObservations, action_size: int, units: int):
        super().__init__()
        self._normalize = normalizer.forward
        self.encoder = normalizer.make_encoder()
        self.layers = Mlp(units, units, activation="tanh")(self.encoder.size + action_size)
        self.output = make_orthogonal_linear(self.layers.size, 1, gain=1.0)

    def read(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Return features and actions [n, F + A]."""
        return torch.cat((self.encoder.encode(self._normalize(obs)), action), -1)

    def decide(self, inputs: Tensor) -> Tensor:
        """Return f of features and actions [n, F + A]."""
        return self.output(self.layers(inputs)).squeeze(-1)

    def forward(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        return self.decide(self.read(obs, action))
