"""Curiosity by self-supervised prediction: the intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363).

Equations are those of the paper: the inverse model (Eq. 2-3), the forward model (Eq. 4-5), the reward (Eq. 6), and the
loss of both (Eq. 7). Every term reads a pair of rows t and t+1, so that it is left out where they belong to two
episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.annotations import Range
from algorithm.auxiliaries.action_prediction import InverseModel, make_model
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, AuxiliarySettings, masked_mean
from algorithm.networks import Torso
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class CuriositySettings(AuxiliarySettings):
    """The settings of curiosity; docs/auxiliaries.md has their meanings."""

    strength: Annotated[float, Range(at_least=0)] = 0.01  # eta, the weight of the reward
    model: Literal["both", "forward", "inverse"] = "both"
    forward_share: Annotated[float, Range(at_least=0, at_most=1)] = 0.2  # beta of Eq. 7, with `model: both`
    features: Literal["own", "agent"] = "own"
    units: Annotated[int, Range(at_least=1)] = 256


class Curiosity(Auxiliary):
    """A reward for rows whose successor is hard to predict: eta / 2 times the squared error of a model.

    The error is that of the forward model, phi'_t+1 = f(phi(x_t), a_t), or, with `model: inverse`, that of the inverse
    model, a'_t = g(phi(x_t), phi(x_t+1)).

    With `features: own`, the inverse and the forward model train an encoder, so that phi contains what the actions of
    the agent change. With `model: forward` the encoder keeps its initial parameters, since the forward model alone
    would make phi constant. With `features: agent`, the agent's torso computes phi, and the models do not train it.
    """

    Settings = CuriositySettings
    settings: CuriositySettings

    def __init__(self, settings: CuriositySettings):
        super().__init__(settings)
        self.reward_weight = settings.strength

    def build(self, agent: Agent, role: Role) -> nn.Module:
        settings, torso = self.settings, agent.policy.torso
        self.family = agent.family
        self.encoder: Torso | None = torso.make_encoder() if settings.features == "own" else None
        size = self.encoder.size if self.encoder else torso.size
        self.forward_model = make_model(size + self.family.encoded_size, settings.units, size)
        self.inverse_model = InverseModel(size, settings.units, role.action_spec)
        trained: dict[str, nn.Module] = {}
        if settings.model != "inverse":
            trained["forward_model"] = self.forward_model
        if settings.model != "forward":
            trained["inverse_model"] = self.inverse_model
        if self.encoder:
            trained["encoder"] = self.encoder
        return nn.ModuleDict(trained)

    def reward(self, inputs: AuxiliaryInputs) -> Tensor:
        phi = self._encode(inputs)
        predict = self._compute_inverse_error if self.settings.model == "inverse" else self._compute_forward_error
        return predict(phi, inputs) * inputs.rollout.same_episode

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        settings, mask = self.settings, inputs.rollout.same_episode
        phi = self._encode(inputs)
        if settings.model == "forward":
            phi = phi.detach()
        losses = {}
        if settings.model != "inverse":
            losses["forward_error"] = masked_mean(self._compute_forward_error(phi, inputs), mask)
        if settings.model != "forward":
            losses["inverse_error"] = masked_mean(self._compute_inverse_error(phi, inputs), mask)
        share = settings.forward_share if settings.model == "both" else 1.0
        weights = {"forward_error": share, "inverse_error": 1 - share if settings.model == "both" else 1.0}
        loss = torch.stack([weights[name] * value for name, value in losses.items()]).sum()
        return loss, losses

    def _encode(self, inputs: AuxiliaryInputs) -> Tensor:
        """Return phi(x_t) [T+1, B, F]."""
        return inputs.unroll_trained(self.encoder) if self.encoder else inputs.features

    def _compute_forward_error(self, phi: Tensor, inputs: AuxiliaryInputs) -> Tensor:
        """Return 1/2 |phi'_t+1 - phi_t+1|^2 [T, B] (Eq. 5-6)."""
        action = self.family.encode(inputs.rollout.raw_action)
        predicted = self.forward_model(torch.cat((phi[:-1], action), -1))
        return 0.5 * (predicted - phi[1:]).square().sum(-1)

    def _compute_inverse_error(self, phi: Tensor, inputs: AuxiliaryInputs) -> Tensor:
        """Return the error of the predicted action [T, B] (Eq. 3): cross-entropy, or squared error if continuous."""
        return self.inverse_model.compute_error(phi, self.family.encode(inputs.rollout.raw_action))
