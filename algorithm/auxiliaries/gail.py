"""Generative adversarial imitation learning, a reward for acting like a player (Ho & Ermon 2016, arXiv 1606.03476).

A discriminator D(x, a) learns to distinguish rows of demonstrations from rows of the policy, which it keeps in a
replay. Its gradient penalty is that of Gulrajani et al. 2017 (arXiv 1704.00028, Eq. 3). The time after the end of an
episode is part of the comparison, as in Kostrikov et al. 2019 (arXiv 1809.02925, section 4.2). There all episodes end
in one absorbing state; here each ends in its own last row, which lasts, so that ends of different kinds differ.
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


class Gail(Auxiliary):
    """A reward from a discriminator of demonstrations and rows of the policy.

    The last row of an episode that terminates counts as 1 / (1 - gamma) rows, for the discriminator and in the reward.
    Otherwise an agent would prefer the end of an episode where rewards are negative, and avoid it where they are
    positive. Gamma is the discount of these rewards: that of the stream, or the agent's if it has no streams.

    Raises:
        ValueError: The agent's gamma is 1.

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
            self.player_rows = np.flatnonzero(~self.player.demonstrations.is_bootstrap_row)
            self.player_alive = self.player.demonstrations.alive[self.player_rows]
        self.rows_after_end = self._count_rows_after_end(agent)
        self.normalizer = NormalizedObservations(agent.policy.torso)
        self.discriminator = Discriminator(
            self.normalizer, self.family.encoded_size if self.reads_action else 0, self.settings.units
        )
        rows = self.settings.policy_rows
        self.obs = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in self.specs.items()}
        self.action = np.zeros((rows, self.family.size), np.float32)
        self.alive = np.ones(rows, bool)
        self.n_rows = 0  # rows of the policy so far; the newest `policy_rows` are kept
        return nn.ModuleDict({"discriminator": self.discriminator, "normalizer": self.normalizer})

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        if not self.settings.strength:
            return None
        rollout = inputs.rollout
        obs = {name: rollout.obs[name][:-1].flatten(0, 1) for name in self.specs}
        logits = self.discriminator(obs, self._encode(rollout.raw_action.flatten(0, 1)))
        reward = logits if self.settings.reward == "logit" else nn.functional.softplus(logits)
        return reward.view_as(rollout.reward) * (1 + self.rows_after_end * ~rollout.alive)

    def has_loss(self, update: int) -> bool:
        return self.n_rows > 0 and super().has_loss(update)

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of Ho & Ermon's Eq. 17, with the policy as class 0, and the gradient penalty."""
        device, count = inputs.batch.reward.device, self.settings.batch_size
        rng = np.random.default_rng((self.player.seed, inputs.update))
        rows = self.player_rows[self._draw_rows(self.player_alive, count, rng)]
        played, raw_action = self.player.read_rows(rows)
        obs = {name: torch.from_numpy(played[name]).to(device) for name in self.specs}
        player = self.discriminator.read(obs, self._encode(torch.from_numpy(raw_action).to(device)))
        rows = self._draw_rows(self.alive[: self.n_rows], count, rng)
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
        self.alive[rows] = rollout.alive[valid]
        self.n_rows += len(rows)

    def state(self) -> dict[str, Tensor]:
        arrays = {name: torch.from_numpy(values[: self.n_rows].copy()) for name, values in self._list_kept().items()}
        return {**arrays, "n_rows": torch.tensor(self.n_rows)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the newest rows; there may have been another number of `policy_rows`."""
        n_rows, before, size = int(state["n_rows"]), len(state["action"]), len(self.action)
        kept = min(before, size)
        newest = np.arange(n_rows - kept, n_rows)
        self.n_rows = n_rows if kept == size else kept
        rows = np.arange(self.n_rows - kept, self.n_rows) % size
        for name, values in self._list_kept().items():
            if name in state:  # checkpoints of earlier versions have no `alive`
                values[rows] = state[name].numpy()[newest % before]

    def _list_kept(self) -> dict[str, np.ndarray]:
        """Return what is kept of the rows of the policy, by name."""
        return {
            **{f"obs/{name}": values for name, values in self.obs.items()},
            "action": self.action,
            "alive": self.alive,
        }

    def _count_rows_after_end(self, agent: Agent) -> float:
        """Return how many rows the last row of a terminated episode counts in addition: gamma + gamma^2 + ..."""
        has_stream = self.name in agent.streams
        gamma = self.settings.gamma if has_stream else agent.reward_transform.gamma
        if has_stream and self.settings.crosses_episodes:
            return 0.0
        if gamma == 1:
            raise ValueError("the agent's gamma must be below 1, since rewards continue after the end of an episode")
        return float(gamma / (1 - gamma))

    def _draw_rows(self, alive: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return random rows [count] of `alive` [n], in which each row without a successor counts for several."""
        rows, ends = rng.integers(len(alive), size=count), np.flatnonzero(~alive)
        weight = self.rows_after_end * len(ends)
        is_end = rng.random(count) < weight / (len(alive) + weight)
        return np.where(is_end, rng.choice(ends, count), rows) if len(ends) else rows

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
