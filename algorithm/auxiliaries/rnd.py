"""Random network distillation, a reward for novel observations (Burda et al. 2019, arXiv 1810.12894).

A predictor is trained to compute the outputs of a target network, whose parameters are random and never change. Its
error is small for observations like those that it was trained with, and large for others. Sections are those of the
paper: the bonus (2.2), returns that cross episodes (2.3), normalization (2.4), and the networks (A.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.settings import RndSettings
from algorithm.networks import Blueprint, FrameStack, Mlp, RunningMoments, TargetNetwork, Torso, Vector
from algorithm.networks.encoders import ConvEncoder, Normalizer, VectorEncoder
from algorithm.networks.layers import make_orthogonal_linear
from algorithm.networks.memories import FrameStackEncoder
from algorithm.networks.modules import EncoderFactory
from algorithm.rollout import COLLECTED, Array, Rollout
from algorithm.specs import ObsSpec, Role

CLIP = 5.0  # standard deviations
MAX_VALUES = 2**20  # values that are merged at once, so that float64 copies of images need little memory


class NormalizedObservations(nn.Module):
    """A module that maps observations to (x - mean) / std of all collected rows, each value clipped to [-5, 5].

    The statistics of an image are those of each pixel. Observations stay as they are if they are binary or one-hot, or
    if their encoder is neither Vector nor a convolutional network, such as OneHot, which reads codes.

    Args:
        torso: The agent's torso.
    """

    def __init__(self, torso: Torso):
        super().__init__()
        self._blueprint, self._obs_specs = torso.blueprint, torso.obs_specs
        specs, encoders = torso.obs_specs, zip(torso.names, torso.encoders, strict=True)
        self.names = [name for name, encoder in encoders if _can_normalize(encoder, specs[name])]
        self.normalizers: Any = nn.ModuleList(Normalizer(prod(specs[name].shape), CLIP) for name in self.names)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {name: [n, *shape]}, of which the normalized ones are float32."""
        normalized = dict(obs)
        for name, normalizer in zip(self.names, self.normalizers, strict=True):
            normalized[name] = normalizer(obs[name].flatten(1).float()).view(obs[name].shape)
        return normalized

    def observe(self, obs: Mapping[str, np.ndarray]) -> None:
        """Update the statistics with the observations of a collected rollout {name: [T+1, B, *shape]}, but the last."""
        for name, normalizer in zip(self.names, self.normalizers, strict=True):
            rows = torch.from_numpy(obs[name][:-1]).flatten(0, 1).flatten(1)
            for part in rows.split(max(MAX_VALUES // rows.shape[1], 1)):
                normalizer.moments.merge(part)

    def make_encoder(self) -> Torso:
        """Return the agent's encoders with initial parameters, for normalized observations of one row each.

        A FrameStack becomes the encoder of the last frame alone (Burda et al. 2019, appendix A.3).
        """
        specs = {
            name: replace(spec, dtype="float32", high=1.0) if name in self.names else spec
            for name, spec in self._obs_specs.items()
        }
        encoders = {pattern: _simplify(factory) for pattern, factory in self._blueprint.encoders.items()}
        return Torso(Blueprint(encoders), specs)


def _can_normalize(encoder: nn.Module, spec: ObsSpec) -> bool:
    """Return whether an encoder of the agent supports normalized observations, which are not all 0 or 1."""
    if isinstance(encoder, FrameStackEncoder):
        encoder = encoder.encoder
    is_binary = spec.dtype == "uint8" and spec.high <= 1
    return isinstance(encoder, VectorEncoder | ConvEncoder) and not is_binary


def _simplify(factory: EncoderFactory) -> EncoderFactory:
    """Return a factory of an encoder of one row of normalized observations."""
    if isinstance(factory, FrameStack):
        return _simplify(factory.encoder)
    return Vector() if isinstance(factory, Vector) else factory


TARGET_LAYERS, PREDICTOR_LAYERS = 1, 3  # hidden layers after the encoders; the predictor has two more, as in the paper


class Rnd(Auxiliary):
    """A reward for novelty, the predictor's mean squared error divided by the standard deviation of its returns.

    The reward of row t is the novelty of x_t+1, 0 where x_t+1 belongs to another episode: the observation after a
    termination is unknown. With `input: observation_and_action` it is the novelty of x_t and a_t, so that it is known
    at the last row of an episode, too, and an explorer can compare the novelty of actions.

    The returns are the discounted sums of the rewards up to each row, S_t = b_t + gamma S_t-1, of every lane. They end
    with an episode unless the agent has a value of the rewards that crosses episodes. Rewards are 0 until
    `warmup_steps` rows have been observed, since the normalization of the first observations is unknown.
    """

    Settings = RndSettings
    settings: RndSettings

    def __init__(self, settings: RndSettings):
        super().__init__(settings)
        self.reads_action = settings.input == "observation_and_action"
        if self.reads_action:
            self.compute_novelty = self._compute_novelty

    def build(self, agent: Agent, role: Role) -> nn.Module:
        settings, self.family = self.settings, agent.family
        self.normalizer = NormalizedObservations(agent.policy.torso)
        action_size = self.family.encoded_size if self.reads_action else 0
        self.target, self.predictor = (
            RndNetwork(self.normalizer.make_encoder(), action_size, [settings.units] * n_layers, settings.outputs)
            for n_layers in (TARGET_LAYERS, PREDICTOR_LAYERS)
        )
        self.sums_cross_episodes = settings.crosses_episodes and bool(agent.streams)
        self.return_moments = RunningMoments()
        self.running_sums = np.zeros(role.lanes)  # S of the last row of each lane
        # Of the last collected rollout [T, B]. The next batch that is not replayed is this rollout, whose rewards need
        # no second pass of the networks.
        self._collected_error: Tensor | None = None
        module = nn.ModuleDict(
            {"predictor": self.predictor, "normalizer": self.normalizer, "return_moments": self.return_moments}
        )
        module.register_buffer("n_observed", torch.zeros((), dtype=torch.float64))
        self.n_observed = module.get_buffer("n_observed")
        return module

    def make_target_networks(self) -> dict[str, TargetNetwork[Any]]:
        return {"target": TargetNetwork(None, self.target)}

    def reward(self, inputs: AuxiliaryInputs) -> Tensor | None:
        if not self.settings.strength:
            return None
        rollout, is_replayed = inputs.rollout, bool((inputs.batch.index != COLLECTED).all())
        error = None if is_replayed else self._collected_error
        if error is None:
            error = self._compute_error(*self._flatten_rows(rollout)).view_as(rollout.reward)
        is_warm = self.n_observed >= self.settings.warmup_steps
        return error / self.return_moments.std.float() * (self._find_known(rollout) & is_warm)

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        obs, action = self._flatten_rows(inputs.rollout)
        is_known = self._find_known(inputs.rollout).flatten()
        if self.settings.predictor_share < 1:
            n_rows = ceil(self.settings.predictor_share * len(action))
            rows = torch.randperm(len(action), device=action.device)[:n_rows]
            obs, action, is_known = {name: value[rows] for name, value in obs.items()}, action[rows], is_known[rows]
        return masked_mean(self._compute_error(obs, action), is_known), {}

    @torch.no_grad()
    def observe(self, rollout: Rollout) -> None:
        self.normalizer.observe(rollout.obs)
        self.n_observed += int(rollout.valid.sum())
        self._collected_error = None
        if not self.settings.strength or self.n_observed < self.settings.warmup_steps:
            return
        obs, action = self._flatten_rows(rollout.convert(self._upload))
        error = self._collected_error = self._compute_error(obs, action).view(rollout.reward.shape)
        bonus = np.where(self._find_known(rollout), error.cpu().numpy().astype(np.float64), 0)
        self._add_to_returns(rollout, bonus)

    def grow(self, lanes: int) -> None:
        self.running_sums = np.pad(self.running_sums, (0, lanes - len(self.running_sums)))

    def state(self) -> dict[str, Tensor]:
        return {"running_sums": torch.from_numpy(self.running_sums.copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.running_sums[:] = state["running_sums"].numpy()

    @torch.inference_mode()
    def _compute_novelty(self, obs: Mapping[str, np.ndarray], raw_action: np.ndarray) -> np.ndarray:
        uploaded = {name: self._upload(value) for name, value in obs.items()}
        action = self.family.encode(self._upload(raw_action))
        features = self.normalizer(uploaded)
        return _compare(self.target(features, action), self.predictor(features, action)).cpu().numpy()

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.n_observed.device)

    def _find_known(self, rollout: Rollout) -> Array:
        """Return the rows [T, B] bool whose novelty is defined."""
        return rollout.valid if self.reads_action else rollout.same_episode

    def _flatten_rows(self, rollout: Rollout) -> tuple[dict[str, Tensor], Tensor]:
        """Return the inputs of the networks of all T * B rows: {name: [T * B, ...]}, and encoded actions [T * B, A]."""
        rows = slice(-1) if self.reads_action else slice(1, None)
        obs = {name: value[rows].flatten(0, 1) for name, value in rollout.obs.items()}
        action = rollout.raw_action.flatten(0, 1)
        return obs, self.family.encode(action) if self.reads_action else action[:, :0]

    def _compute_error(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Return the error of the predictor [n], with gradient to the predictor only."""
        normalized, action = self.normalizer(obs), action.unsqueeze(1)
        with torch.no_grad():
            target = self.target(normalized, action)
        return _compare(target, self.predictor(normalized, action)).squeeze(1)

    def _add_to_returns(self, rollout: Rollout, bonus: np.ndarray) -> None:
        """Include the returns of a collected rollout, with bonuses [T, B] that are not divided, in the moments."""
        is_counted = rollout.valid & np.isfinite(bonus)
        counted = []
        for columns in rollout.iterate_lane_batches():
            lane = rollout.lane[columns]
            sums = np.where(rollout.continues_previous[columns], self.running_sums[lane], 0)
            for t, rows in enumerate(is_counted[:, columns]):
                if not self.sums_cross_episodes:
                    sums = np.where(rollout.first[t, columns], 0, sums)
                sums = np.where(rows, bonus[t, columns] + self.settings.gamma * sums, sums)
                counted.append(sums[rows])
            self.running_sums[lane] = sums
        self.return_moments.merge(torch.from_numpy(np.concatenate(counted)))


class RndNetwork(nn.Module):
    """The target or the predictor: normalized observations {name: [n, ...]}, actions [n, k, A] -> [n, k, outputs].

    Args:
        encoder: The encoder of normalized observations.
        action_size: A, the size of an encoded action; 0: no action is read.
        units: Units of each hidden layer.
        outputs: Number of outputs.
    """

    def __init__(self, encoder: Torso, action_size: int, units: list[int], outputs: int):
        super().__init__()
        self.encoder = encoder
        self.layers = Mlp(*units)(encoder.size + action_size)
        # No initial bias: the difference of two biases would be learned at once, for all observations.
        self.output = make_orthogonal_linear(self.layers.size, outputs, gain=2**0.5)

    def forward(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        features = self.encoder.encode(obs).unsqueeze(1).expand(-1, action.shape[1], -1)
        return self.output(self.layers(torch.cat((features, action), -1)))


def _compare(target: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean squared error [...] of outputs [..., outputs]."""
    return (predicted - target).square().mean(-1)
