"""Curiosity by self-supervised prediction: the intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363).

Equations are those of the paper: the inverse model (Eq. 2-3), the forward model (Eq. 4-5), the reward (Eq. 6), and the
loss of both (Eq. 7). Every term reads a pair of rows t and t+1, so that it is left out where they belong to two
episodes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.settings import CuriositySettings
from algorithm.networks import Mlp, Torso
from algorithm.specs import ActionSpec, Role


class InverseModel(nn.Module):
    """A network that predicts the action between two rows from their features (Pathak et al. 2017, Eq. 2-3).

    Its outputs are one value for each continuous dimension, and a logit for each action of each branch.
    """

    def __init__(self, size: int, units: int, spec: ActionSpec):
        super().__init__()
        self._sizes = [spec.continuous, *spec.branches]
        self.layers = make_model(2 * size, units, sum(self._sizes))

    def compute_error(self, features: Tensor, encoded: Tensor) -> Tensor:
        """Return the error of each predicted action.

        Args:
            features: [T+1, B, size].
            encoded: The taken actions [T, B, ...]: continuous dimensions in [-1, 1], then one-hot indices of each
                branch, as `DistributionFamily.encode` returns them.

        Returns:
            [T, B]: 1/2 the squared error of the continuous dimensions, plus the cross-entropy of each branch in nats.
        """
        predicted = self.layers(torch.cat((features[:-1], features[1:]), -1))
        (means, *logits), (actions, *codes) = predicted.split(self._sizes, -1), encoded.split(self._sizes, -1)
        error = 0.5 * (means - actions).square().sum(-1)
        for logit, code in zip(logits, codes, strict=True):
            error = error - (code * torch.log_softmax(logit, -1)).sum(-1)
        return error


def make_model(inputs: int, units: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer."""
    hidden = Mlp(units)(inputs)
    return nn.Sequential(hidden, nn.Linear(hidden.size, outputs))


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
        # The batch of the last rewards, and the errors of the models for it, until its loss has been computed.
        self._last_errors: tuple[object, dict[str, Tensor]] = (None, {})

    def build(self, agent: Agent, role: Role) -> nn.Module:
        settings, torso = self.settings, agent.policy.torso
        self.family = agent.family
        # With epochs, the batches of the loss are parts of the batch for which rewards were computed.
        self.reuses_errors = agent.schedule.epochs is None
        self.encoder: Torso | None = torso.make_encoder() if settings.features == "own" else None
        size = self.encoder.size if self.encoder else torso.size
        self.forward_model = make_model(size + self.family.encoded_size, settings.units, size)
        self.inverse_model = InverseModel(size, settings.units, role.action_spec)
        models = {"forward_model": self.forward_model, "inverse_model": self.inverse_model}
        trained = [f"{settings.model}_model"] if settings.model != "both" else list(models)
        self.trained_errors = [f"{name.removesuffix('_model')}_error" for name in trained]
        encoder = {"encoder": self.encoder} if self.encoder else {}
        return nn.ModuleDict({**{name: models[name] for name in trained}, **encoder})

    def reward(self, inputs: AuxiliaryInputs) -> Tensor:
        rewarding = "inverse_error" if self.settings.model == "inverse" else "forward_error"
        if self.reuses_errors and self.has_loss(inputs.update):
            with torch.enable_grad():
                errors = self._compute_errors(inputs, self.trained_errors)
            self._last_errors = (inputs.batch, errors)
        else:
            errors = self._compute_errors(inputs, [rewarding])
        return errors[rewarding].detach() * inputs.rollout.same_episode

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        settings, mask = self.settings, inputs.rollout.same_episode
        batch, errors = self._last_errors
        if batch is not inputs.batch:
            errors = self._compute_errors(inputs, self.trained_errors)
        self._last_errors = (None, {})
        losses = {name: masked_mean(error, mask) for name, error in errors.items()}
        if settings.model != "both":
            return losses[self.trained_errors[0]], losses
        share = settings.forward_share  # Eq. 7
        return share * losses["forward_error"] + (1 - share) * losses["inverse_error"], losses

    def _compute_errors(self, inputs: AuxiliaryInputs, names: list[str]) -> dict[str, Tensor]:
        """Return the errors [T, B] of some models by name."""
        phi = inputs.unroll_trained(self.encoder) if self.encoder else inputs.features
        if self.settings.model == "forward":
            phi = phi.detach()  # the forward model does not train its encoder
        action, errors = self.family.encode(inputs.rollout.raw_action), {}
        if "forward_error" in names:
            predicted = self.forward_model(torch.cat((phi[:-1], action), -1))
            errors["forward_error"] = 0.5 * (predicted - phi[1:]).square().sum(-1)  # Eq. 5-6
        if "inverse_error" in names:
            errors["inverse_error"] = self.inverse_model.compute_error(phi, action)  # Eq. 3
        return errors
