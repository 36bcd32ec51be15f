"""Prediction of the next features, the reward and the observation, which trains the agent's features.

The losses are those of the recurrent prediction model of Advanced-Soft-Actor-Critic (`use_prediction`).
"""

from __future__ import annotations

from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.settings import PredictionSettings
from algorithm.distributions.gaussian import Gaussian
from algorithm.networks import Mlp, TargetNetwork, Torso, Vector
from algorithm.networks.fast_products import Linear
from algorithm.rollout import Rollout
from algorithm.specs import ObsSpec, Role

STD_MIN, STD_MAX = 0.1, 1.0  # of predicted features


class Prediction(Auxiliary):
    """A loss of a model that predicts the next features and the reward, and reconstructs the observation.

    With the agent's features s, the features s' of a target network of its torso, the action a, the reward r that the
    agent learns from, and the observation x, the loss of a row is the weighted sum of

        transition   -log p(s'_t+1) + transition_kl KL(p || N(0, 1)), where p = N(mean(s_t, a_t), std(s_t, a_t)^2),
                     in nats, mean over features
        reward       (f(s_t, a_t) - r_t)^2
        observation  (g(s_t) - x_t)^2, mean over the normalized values of each observation, mean over observations

    A part whose coefficient is 0 is left out. The transition needs two rows of one episode; the other parts are learned
    from every valid row, also from that of a termination.
    """

    Settings, shapes_features = PredictionSettings, True
    settings: PredictionSettings

    def __init__(self, settings: PredictionSettings):
        super().__init__(settings)
        self.adaptive = settings.adaptive
        if not (settings.transition_coef or settings.reward_coef or settings.observation_coef):
            raise ValueError(
                "transition_coef, reward_coef and observation_coef are all 0; at least one must be above 0"
            )

    def build(self, agent: Agent, role: Role) -> nn.Module:
        settings, torso = self.settings, agent.policy.torso
        if not any(True for _ in torso.parameters()):
            raise ValueError(
                "the features are the observations, which no loss can change; the blueprint needs an encoder with "
                "layers, a body or a memory"
            )
        self.family, units = agent.family, settings.units
        trained: dict[str, nn.Module] = {}
        self.target: TargetNetwork[Torso] | None = None
        if settings.transition_coef or settings.reward_coef:
            trained["hidden"] = self.hidden = Mlp(units)(torso.size + agent.family.encoded_size)
        if settings.transition_coef:
            self.target = TargetNetwork(torso, deepcopy(torso))
            trained["transition"] = self.transition = TransitionHead(units, torso.size)
        if settings.reward_coef:
            trained["reward"] = self.reward_head = Linear(units, 1)
        self.decoders: dict[str, ObservationDecoder] = {}
        if settings.observation_coef:
            self.decoders = {name: ObservationDecoder(torso.size, role.obs_specs[name], units) for name in torso.names}
            trained["observation"] = nn.ModuleList(self.decoders.values())
        return nn.ModuleDict(trained)

    def make_target_networks(self) -> dict[str, TargetNetwork[Any]]:
        return {"torso": self.target} if self.target else {}

    def update_targets(self) -> None:
        if self.target:
            self.target.polyak_update(self.settings.tau)

    def observe(self, rollout: Rollout) -> None:
        for name, decoder in self.decoders.items():
            decoder.observe(rollout.obs[name][:-1][rollout.valid])

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        settings, rollout, features = self.settings, inputs.rollout, inputs.row_features
        coefs = {
            "transition_nll": settings.transition_coef,
            "transition_kl": settings.transition_coef * settings.transition_kl,
            "reward_error": settings.reward_coef,
            "observation_error": settings.observation_coef,
        }
        values: dict[str, Tensor] = {}
        if settings.transition_coef or settings.reward_coef:
            hidden = self.hidden(torch.cat((features, self.family.encode(rollout.raw_action)), -1))
        if settings.transition_coef:
            values |= self._compute_transition_losses(self.transition(hidden), inputs)
        if settings.reward_coef:
            error = (self.reward_head(hidden).squeeze(-1) - rollout.reward).square()
            values["reward_error"] = masked_mean(error, rollout.valid)
        if settings.observation_coef:
            errors = [
                decoder.compute_error(features, rollout.obs[name][:-1]) for name, decoder in self.decoders.items()
            ]
            values["observation_error"] = masked_mean(torch.stack(errors).mean(0), rollout.valid)
        return torch.stack([coefs[name] * value for name, value in values.items()]).sum(), values

    def _compute_transition_losses(self, predicted: Gaussian, inputs: AuxiliaryInputs) -> dict[str, Tensor]:
        """Return the mean of -log p(s'_t+1) and of KL(p || N(0, 1)) over rows, given p."""
        assert self.target is not None
        with torch.no_grad():
            target = inputs.unroll(self.target.network, begin=1)
        standard = Gaussian(torch.zeros_like(predicted.statistics))
        size, mask = target.shape[-1], inputs.rollout.same_episode
        return {
            "transition_nll": masked_mean(-predicted.log_prob(target) / size, mask),
            "transition_kl": masked_mean(standard.kl(predicted) / size, mask),
        }


class TransitionHead(nn.Module):
    """A linear layer from hidden units [..., units] to the distribution of features [..., size].

    The std is a sigmoid, scaled to (STD_MIN, STD_MAX).
    """

    def __init__(self, units: int, size: int):
        super().__init__()
        self.linear = Linear(units, 2 * size)

    def forward(self, hidden: Tensor) -> Gaussian:
        mean, raw_std = self.linear(hidden).chunk(2, -1)
        log_std = (STD_MIN + (STD_MAX - STD_MIN) * raw_std.sigmoid()).log()
        return Gaussian(torch.cat((mean, log_std), -1))


class ObservationDecoder(nn.Module):
    """A decoder of one observation: features [..., size] -> the values of the observation, normalized.

    Bytes are divided by their largest value. Other values are normalized to (x - mean) / std over all collected rows.
    """

    def __init__(self, size: int, spec: ObsSpec, units: int):
        super().__init__()
        self.layers = nn.Sequential(Mlp(units)(size), Linear(units, prod(spec.shape)))
        self.normalize = Vector(scale=1 / spec.high)(spec) if spec.dtype == "uint8" else Vector(normalize=True)(spec)

    def compute_error(self, features: Tensor, obs: Tensor) -> Tensor:
        """Return the mean squared error [T, B] of observations [T, B, *shape], given features [T, B, size]."""
        decoded, values = self.layers(features.flatten(0, 1)), self.normalize(obs.flatten(0, 1))
        return (decoded - values).square().mean(-1).unflatten(0, features.shape[:2])

    def observe(self, obs: np.ndarray) -> None:
        """Update the running statistics with collected rows [n, *shape]."""
        self.normalize.observe(torch.from_numpy(obs))
