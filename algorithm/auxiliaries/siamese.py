"""Auxiliaries that compare the agent's features of one observation with a slow copy's of another one.

Augmented temporal contrast (Stooke et al. 2021, arXiv 2009.08319) and bootstrap your own latent (Grill et al. 2020,
arXiv 2006.07733).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.curiosity import make_model
from algorithm.auxiliaries.settings import BootstrapYourOwnLatentSettings, SiameseSettings
from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import RandomShift, TargetNetwork
from algorithm.networks.modules import Augmentation
from algorithm.specs import ObsSpec, Role


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of rows t and t + k of a batch, as indices in its flattened rows [(T+1) * B]."""

    first: Tensor  # the indices of the rows t [n]
    second: Tensor  # the indices of the rows t + k [n]
    valid: Tensor  # whether both rows of a pair belong to one episode [n] bool


class SiameseAuxiliary(Auxiliary):
    """A loss of pairs of observations (x_t, x_t+k) of one episode, which shapes the agent's encoders and body.

    The agent encodes one observation of a pair, a moving average of its encoders and body (the target network) the
    other one, without gradient. Both see augmented observations: images are shifted at random, vectors get Gaussian
    noise. A memory after the body is not used. A subclass defines the loss of the pairs.
    """

    Settings = SiameseSettings
    settings: SiameseSettings
    shapes_features = True
    is_symmetric = False  # whether the agent encodes the second observations too, and the target network the first

    def __init__(self, settings: SiameseSettings):
        super().__init__(settings)
        self.adaptive = settings.adaptive

    def build(self, agent: Agent, role: Role) -> nn.Module:
        self.agent, self.torso = agent, agent.policy.torso
        parts = [self.torso.encoders, *([self.torso.body] if self.torso.body else [])]
        if not any(True for part in parts for _ in part.parameters()):
            raise ValueError("no encoder or body of the network has parameters to shape; add a body to the blueprint")
        self.augmentations = self._make_augmentations({name: role.obs_specs[name] for name in self.torso.names})
        if not self.augmentations and not self.settings.steps:
            raise ValueError(
                "both observations of a pair would be equal: set steps above 0, a shift of images, or noise of vectors"
            )
        if self.settings.action_values:
            self._check_action_values(role)
        self.target_torso = TargetNetwork(self.torso, deepcopy(self.torso))
        trained = self.build_heads(self.torso.encoded_size)
        # It maps the features of either observation to what is compared.
        self.projector: nn.Module = trained["projector"]
        self.target_projector = TargetNetwork(self.projector, deepcopy(self.projector))
        return trained

    @abstractmethod
    def build_heads(self, size: int) -> nn.ModuleDict:
        """Return the trained modules, among them `projector`, for features of this size."""

    @abstractmethod
    def compare(self, online: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of some pairs, and metrics.

        Args:
            online: The output of the projector for one observation of each pair [n, latent_size], with gradient.
            target: The output of the target projector for the other observation [n, latent_size].
            valid: The pairs that count [n] bool.
        """

    def make_target_networks(self) -> dict[str, TargetNetwork[Any]]:
        return {"torso": self.target_torso, "projector": self.target_projector}

    def update_targets(self) -> None:
        for target in (self.target_torso, self.target_projector):
            target.polyak_update(self.settings.tau)

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        rows = inputs.select_inputs(self.torso)
        pairs = select_pairs(inputs.rollout.first, self.settings.steps, self.settings.max_pairs)
        features = self.torso.encode_inputs(self._augment(rows, pairs.first))
        loss, metrics = self.compare(self.projector(features), self._project_target(rows, pairs.second), pairs.valid)
        if self.is_symmetric:
            online = self.projector(self.torso.encode_inputs(self._augment(rows, pairs.second)))
            loss = 0.5 * (loss + self.compare(online, self._project_target(rows, pairs.first), pairs.valid)[0])
        if self.settings.action_values:
            metrics["q_error"] = self._compute_q_error(inputs, pairs, features, self._encode_target(rows, pairs.first))
            loss = loss + metrics["q_error"]
        return self.settings.strength * loss, metrics

    @torch.no_grad()
    def _encode_target(self, rows: Mapping[str, Tensor], index: Tensor) -> Tensor:
        """Return the target network's features [n, F] of augmented rows."""
        return self.target_torso.network.encode_inputs(self._augment(rows, index))

    @torch.no_grad()
    def _project_target(self, rows: Mapping[str, Tensor], index: Tensor) -> Tensor:
        return self.target_projector.network(self._encode_target(rows, index))

    def _augment(self, rows: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
        """Return the selected rows, augmented; each call draws new augmentations."""
        selected = {name: value[index] for name, value in rows.items()}
        return selected | {name: augment(selected[name]) for name, augment in self.augmentations.items()}

    def _make_augmentations(self, obs_specs: Mapping[str, ObsSpec]) -> dict[str, Augmentation]:
        augmentations: dict[str, Augmentation] = {}
        for name, spec in obs_specs.items():
            if len(spec.shape) == 3 and self.settings.shift:
                augmentations[name] = RandomShift(self.settings.shift)(spec)
            elif len(spec.shape) < 3 and spec.dtype.startswith("float") and self.settings.noise:
                augmentations[name] = partial(add_noise, std=self.settings.noise)
        return augmentations

    def _check_action_values(self, role: Role) -> None:
        """Raise ValueError if the agent has no values of actions that are functions of the torso's features."""
        if self.torso.memory:
            raise ValueError("action_values needs a network without memory, since pairs are encoded without it")
        with torch.no_grad():
            self.agent.evaluate_actions(torch.zeros(1, self.torso.size), torch.zeros(1, role.action_spec.size))

    def _compute_q_error(self, inputs: AuxiliaryInputs, pairs: Pairs, features: Tensor, target: Tensor) -> Tensor:
        """Return the mean square of Q(phi(x_t), a_t) - Q(phi'(x_t), a_t), with phi' of the target network.

        All critics count equally.
        """
        taken = inputs.rollout.raw_action.flatten(0, 1)[pairs.first]
        q = self.agent.evaluate_actions(features, taken)
        with torch.no_grad():
            target_q = self.agent.evaluate_actions(target, taken)
        return (q - target_q).square().mean()


def select_pairs(first: Tensor, steps: int, max_pairs: int) -> Pairs:
    """Return pairs of rows that are `steps` apart. The first row of a pair is one of the T rows with an action.

    Args:
        first: The first rows of episodes [T+1, B].
        steps: k; in a batch of fewer rows T the largest possible number, T.
        max_pairs: The largest number of pairs. If there are more, they are drawn at random, from torch's default
            generator of the device, and pairs of one episode come first.
    """
    rows, columns = first.shape
    steps = min(steps, rows - 1)
    episode = first.long().cumsum(0)
    count = rows - max(steps, 1)
    valid = (episode[steps : steps + count] == episode[:count]).flatten()
    index = torch.arange(len(valid), device=first.device)
    if len(valid) > max_pairs:
        order = torch.rand(len(valid), device=first.device) - valid.float()
        index = order.argsort()[:max_pairs]
    return Pairs(first=index, second=index + steps * columns, valid=valid[index])


def add_noise(rows: Tensor, std: float) -> Tensor:
    """Return rows with independent Gaussian noise of this standard deviation, in the unit of the observation."""
    return rows + std * torch.randn_like(rows)


class AugmentedTemporalContrast(SiameseAuxiliary):
    """A contrastive loss: the features of x_t identify x_t+k among all second observations of the batch.

        c_t = compressor(phi(x_t)),   c'_t+k = target compressor(target phi(x_t+k))
        p_t = c_t + predictor(c_t),   l_ij = p_i^T W c'_j,   loss = -mean_i log softmax_j(l_i)_i       (section 3)

    The compressor is linear, the predictor has one hidden layer.
    """

    def build_heads(self, size: int) -> nn.ModuleDict:
        settings, latent_size = self.settings, self.settings.latent_size
        self.predictor = make_model(latent_size, settings.units, latent_size)
        self.bilinear = nn.Linear(latent_size, latent_size, bias=False)
        projector = nn.Linear(size, latent_size)
        return nn.ModuleDict({"projector": projector, "predictor": self.predictor, "bilinear": self.bilinear})

    def compare(self, online: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.bilinear(online + self.predictor(online))
        logits = (predicted @ target.T).masked_fill(~valid, MASKED_LOGIT)  # targets of invalid pairs are never selected
        label = torch.arange(len(logits), device=logits.device)
        loss = masked_mean(nn.functional.cross_entropy(logits, label, reduction="none"), valid)
        return loss, {"accuracy": masked_mean((logits.argmax(-1) == label).float(), valid)}


class BootstrapYourOwnLatent(SiameseAuxiliary):
    """A loss of the features of one view of an observation, which predict a moving average's features of another view.

        z_t = projector(phi(x_t)),   z'_t+k = target projector(target phi(x_t+k))
        loss = mean_t 2 - 2 cos(predictor(z_t), z'_t+k)                                                        (Eq. 2)

    With k = 0, as in the paper, the views are two augmentations of one observation. Projector and predictor have one
    hidden layer with layer normalization in place of the paper's batch normalization, so that a row's features do not
    depend on the other rows of a batch.
    """

    Settings = BootstrapYourOwnLatentSettings
    settings: BootstrapYourOwnLatentSettings

    def __init__(self, settings: BootstrapYourOwnLatentSettings):
        super().__init__(settings)
        self.is_symmetric = settings.symmetric

    def build_heads(self, size: int) -> nn.ModuleDict:
        units, latent_size = self.settings.units, self.settings.latent_size
        projector = _make_network(size, units, latent_size)
        self.predictor = _make_network(latent_size, units, latent_size)
        return nn.ModuleDict({"projector": projector, "predictor": self.predictor})

    def compare(self, online: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        target = normalize(target, dim=-1)
        distance = 2 - 2 * nn.functional.cosine_similarity(self.predictor(online), target, dim=-1)
        loss = masked_mean(distance, valid)
        # 1 if the targets point in all directions, 0 if all are equal: the features have collapsed.
        mean = (target * valid.unsqueeze(-1)).sum(0) / valid.sum().clamp(min=1)
        return loss, {"spread": 1 - mean.square().sum()}


def _make_network(inputs: int, units: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer, normalized."""
    return nn.Sequential(nn.Linear(inputs, units), nn.LayerNorm(units), nn.ReLU(), nn.Linear(units, outputs))
