"""Networks of policies and critics: on a common torso, separate, branches that may have memories, and ensembles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.distributions import MASKED_LOGIT, CategoricalFamily, HybridFamily
from algorithm.distributions.categorical import find_allowed_combinations
from algorithm.networks.heads import AdvantageHead, HeadSpec, SeparateHeads, SharedHeads, StdHead
from algorithm.networks.layers import Mlp, make_orthogonal_linear
from algorithm.networks.modules import BranchFactory, NumpyFunction, build_module, is_memory, make_numpy_chain
from algorithm.networks.normalization import batch_statistics
from algorithm.networks.passes import AutogradPass, ManualPass, ManualStack, Pass, make_manual_stacks
from algorithm.networks.policy import ActFunction, CombinationPolicy, Policy
from algorithm.networks.precision import run_in_precision
from algorithm.networks.torso import Blueprint, Torso
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ObsSpec


class ActorCritic(Policy):
    """A network that computes the statistics of the policy and the values of a critic.

    As a policy, `forward` computes the statistics only, one step at a time.

    Args:
        blueprint: The layers; the outputs follow them.
        obs_specs: Observations by name; an action mask among them applies to the last statistics, the logits.
        statistics_size: Number S of statistics that determine the policy's distribution.
        n_values: Number of values of the critic; 0: a policy without critic.
        std_head: The standard deviations of continuous actions; None without continuous actions.
        encoded_size: Size of an encoded action that an additional advantage head reads; 0: no advantage head.
        torso: A torso shared with another network; None: a new one.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        obs_specs: Mapping[str, ObsSpec],
        statistics_size: int,
        n_values: int,
        std_head: StdHead | None = None,
        encoded_size: int = 0,
        torso: Torso | None = None,
    ):
        super().__init__()
        self.n_masked_logits = obs_specs[ACTION_MASK].shape[0] if ACTION_MASK in obs_specs else 0
        self.torso = torso or Torso(blueprint, obs_specs)
        self.statistics_size = statistics_size
        self.std_head = std_head
        size = self.torso.size
        n_columns = statistics_size - 2 * std_head.n_means + std_head.n_columns if std_head else statistics_size
        # With a small gain the initial policy is close to uniform for all features.
        branches = [(blueprint.policy, HeadSpec(n_columns, gain=0.01))]
        if n_values:
            branches.append((blueprint.critic, HeadSpec(n_values, gain=1.0)))
        self.heads: SharedHeads | SeparateHeads
        if any(layers for layers, _ in branches):
            self.heads = SeparateHeads(size, *branches)
        else:
            self.heads = SharedHeads(size, *(head for _, head in branches))
        self.advantage_head: Any = AdvantageHead(size, encoded_size, blueprint.critic) if encoded_size else None
        self.manual_stacks: Sequence[ManualStack] = ()  # the heads, if gradients are computed by hand

    def use_manual_passes(self) -> None:
        """Compute gradients by hand in passes of the policy, if its layers support it and there is no critic."""
        heads, layers = self.heads, [nn.Identity()]
        if isinstance(heads, SeparateHeads):
            layers, (heads, *_) = heads.layers, heads.heads
        if len(layers) == len(heads.sizes) == 1 and self.heads.precision is torch.float32:
            self.manual_stacks = make_manual_stacks([(layers[0], heads.linear)], by_output=True)

    def run(self, features: Tensor, n_learned: int) -> Pass:
        """Return the pass of a policy without critic for features [T, B, F] without gradient -> [T, B, S].

        Its loss is that of the first `n_learned` rows.
        """
        if self.manual_stacks:
            return ManualPass(self.manual_stacks, features, (*features.shape[:-1], -1), self.std_head)
        outputs = self.compute_outputs(features[:n_learned])
        if n_learned == len(features):
            return AutogradPass(outputs)
        with torch.no_grad():
            return AutogradPass(outputs, further_outputs=self.compute_outputs(features[n_learned:]))

    def compute_outputs(self, features: Tensor) -> Tensor:
        """Return statistics and values concatenated: [..., F] -> [..., S + n_values]. No logit is masked yet."""
        return self._insert_std(self.heads.unroll(features))

    def _insert_std(self, outputs: Tensor) -> Tensor:
        return self.std_head(outputs) if self.std_head else outputs

    def mask_logits(self, statistics: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Set the logits of forbidden actions to MASKED_LOGIT.

        Args:
            statistics: Statistics [n, ..., S].
            obs: Observations {name: [m, ...]} with m >= n; the mask of the first n rows is used.

        Returns:
            The statistics [n, ..., S], unchanged without an action mask.
        """
        if not self.n_masked_logits:
            return statistics
        others, logits = statistics.split([self.statistics_size - self.n_masked_logits, self.n_masked_logits], -1)
        return torch.cat((others, logits.masked_fill(obs[ACTION_MASK][: len(logits)] == 0, MASKED_LOGIT)), -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        statistics = self._insert_std(self.heads(features))[..., : self.statistics_size]
        return self.mask_logits(statistics, obs), memory

    def numpy(self) -> ActFunction | None:
        policy = make_numpy_chain(self.torso, self.heads, self.std_head)
        if policy is None:
            return None

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            statistics = policy(obs)
            if self.n_masked_logits:
                statistics[:, -self.n_masked_logits :][obs[ACTION_MASK] == 0] = MASKED_LOGIT
            return statistics, memory

        return act


class SeparateCritic(nn.Module):
    """A critic that shares no parameters with the policy: it reads features that its gradient does not change.

    Before its outputs are the `critic` layers of the blueprint; without them, layers made by the factory of `body`.

    Args:
        encoded_size: Size of an encoded action that an additional advantage head reads; 0: no advantage head.
    """

    def __init__(self, blueprint: Blueprint, inputs: int, n_values: int, encoded_size: int = 0):
        super().__init__()
        layers = blueprint.critic or blueprint.body
        self.heads = SeparateHeads(inputs, (layers, HeadSpec(n_values, gain=1.0)))
        self.advantage_head: Any = AdvantageHead(inputs, encoded_size, layers) if encoded_size else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the values [..., n_values] at features [..., F] without gradient."""
        return self.heads.unroll(features)


class Branch(nn.Module):
    """Layers, a memory, or neither, and a linear output: features [..., inputs] -> outputs [..., head.size]."""

    def __init__(self, inputs: int, factory: BranchFactory | None, head: HeadSpec):
        super().__init__()
        self.precision = torch.float32
        layers: Any = build_module(factory, inputs) if factory else nn.Identity()
        self.layers, self.has_memory = layers, is_memory(layers)
        self.state_size: int = self.layers.state_size if self.has_memory else 0
        self.head = SharedHeads(getattr(self.layers, "size", inputs), head)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], state [B, state_size] -> inputs of the head, next state."""
        return self.layers.step(features, state) if self.has_memory else (self.layers(features), state)

    @run_in_precision
    def unroll(self, features: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map T rows: features [T, B, F], first [T, B], state before row 0 -> inputs of the head, last state.

        With a lower `precision` the layers or the memory compute in it.
        """
        return self.layers.unroll(features, first, state) if self.has_memory else (self.layers(features), state)

    def numpy(self) -> NumpyFunction | None:
        """Return the outputs in numpy, on views of the parameters; None if a part has no numpy form."""
        return None if self.has_memory else make_numpy_chain(self.layers, self.head)


@dataclass(frozen=True, kw_only=True)
class BranchedOutputs:
    """The outputs of a BranchedActorCritic at T+1 rows."""

    features: Tensor  # [T+1, B, F], which the critic trains
    logits: Tensor  # [T+1, B, K] of the policy, unmasked; their gradient does not reach the features
    values: Tensor  # [T+1, B, n_values] of the critic


class BranchedActorCritic(CombinationPolicy):
    """A network with a categorical policy and a critic, each with its own layers or its own memory after the torso.

    The gradient of the policy ends at the torso, which only the critic trains (Gruslys et al. 2018, arXiv 1704.04651,
    section 4). The policy is (1 - e) softmax(logits) + e uniform, both over the allowed actions.

    The memory of a lane contains the stored states of the torso, of the policy and of the critic, then the past frames
    of the torso's encoders, which are not stored.

    Args:
        blueprint: The layers; the outputs follow them.
        obs_specs: Observations by name; an action mask among them restricts the actions.
        family: The distributions over K actions, or combinations of actions.
        n_values: Number of outputs of the critic.
        value_gain: Gain of the initial weights of these outputs.
        uniform_fraction: e, the weight of the uniform distribution.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        obs_specs: Mapping[str, ObsSpec],
        family: CategoricalFamily,
        n_values: int,
        value_gain: float,
        uniform_fraction: float,
    ):
        super().__init__(obs_specs, family.branches)
        self.family, self.uniform_fraction = family, uniform_fraction
        self.torso = Torso(blueprint, obs_specs)
        # With a small gain the initial policy is close to uniform for all features.
        self.policy = Branch(self.torso.size, blueprint.policy, HeadSpec(family.statistics_size, gain=0.01))
        self.critic = Branch(self.torso.size, blueprint.critic, HeadSpec(n_values, gain=value_gain))
        self.stored_sizes = [self.torso.stored_state_size, self.policy.state_size, self.critic.state_size]

    @property
    def state_size(self) -> int:
        return self.torso.state_size + self.policy.state_size + self.critic.state_size

    @property
    def stored_state_size(self) -> int:
        return sum(self.stored_sizes)

    def split_memory(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the memory [..., M] of the torso, of the policy and of the critic, of all or of the stored part."""
        torso_state, policy_state, critic_state, frames = memory.split(
            [*self.stored_sizes, memory.shape[-1] - self.stored_state_size], -1
        )
        return torch.cat((torso_state, frames), -1), policy_state, critic_state

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        torso_memory, policy_state, critic_state = self.split_memory(memory)
        features, torso_memory = self.torso.step(obs, torso_memory)
        hidden, policy_state = self.policy.step(features, policy_state)
        if self.critic.has_memory:  # its state is stored with the rollout
            _, critic_state = self.critic.step(features, critic_state)
        torso_state, frames = torso_memory.tensor_split([self.stored_sizes[0]], -1)
        logits = self.mask_logits(self.policy.head(hidden), obs)
        return self.mix_with_uniform(logits), torch.cat((torso_state, policy_state, critic_state, frames), -1)

    def unroll(self, rollout: Rollout) -> BranchedOutputs:
        """Return the outputs at the rows of a rollout after its burn-in."""
        features, (policy_state, critic_state) = self.unroll_torso(rollout, (self.policy, self.critic))
        first = rollout.first[rollout.burn_in :]
        logits = self.policy.head(self.policy.unroll(features.detach(), first, policy_state)[0])
        values = self.critic.head(self.critic.unroll(features, first, critic_state)[0])
        return BranchedOutputs(features=features, logits=logits, values=values)

    def unroll_critic(self, rollout: Rollout) -> Tensor:
        """Return the outputs of the critic [T+1, B, n_values] at the rows of a rollout after its burn-in."""
        features, (state,) = self.unroll_torso(rollout, (self.critic,))
        return self.critic.head(self.critic.unroll(features, rollout.first[rollout.burn_in :], state)[0])

    def unroll_torso(self, rollout: Rollout, branches: tuple[Branch, ...] = ()) -> tuple[Tensor, list[Tensor]]:
        """Return the features [T+1, B, F] after the burn-in, and the states of branches before them.

        The burn-in updates the states of the torso and of `branches`, without gradient.
        """
        obs, first, burn_in = rollout.obs, rollout.first, rollout.burn_in
        torso_memory, policy_state, critic_state = self.split_memory(rollout.memory)
        states = [policy_state if branch is self.policy else critic_state for branch in branches]
        recurrent_state, frames, begin = self.torso.split_memory(torso_memory)
        if self.stored_state_size and begin < burn_in:
            with torch.no_grad(), batch_statistics(None):
                features, recurrent_state = self.torso.unroll_rows(obs, first, recurrent_state, frames, begin, burn_in)
                rows = first[begin:burn_in]
                states = [
                    branch.unroll(features, rows, state)[1] for branch, state in zip(branches, states, strict=True)
                ]
        features, _ = self.torso.unroll_rows(obs, first, recurrent_state, frames, burn_in, len(first))
        return features, states

    def mix_with_uniform(self, logits: Tensor) -> Tensor:
        """Return the statistics [..., K] of the policy, its log-probabilities; masked logits stay masked."""
        if not self.uniform_fraction:
            return logits
        is_allowed = logits > MASKED_LOGIT / 2
        n_allowed = is_allowed.to(logits.dtype).sum(-1, keepdim=True).clamp(min=1)
        probs = (1 - self.uniform_fraction) * logits.softmax(-1) + self.uniform_fraction / n_allowed
        return probs.log().masked_fill(~is_allowed, MASKED_LOGIT)

    def numpy(self) -> ActFunction | None:
        policy = make_numpy_chain(self.torso, self.policy)
        if policy is None or self.state_size:
            return None
        codes = self.combination_codes

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            logits = policy(obs)
            if self.has_mask:
                mask = torch.from_numpy(obs[ACTION_MASK])
                logits[find_allowed_combinations(mask, self.branches, codes).numpy() == 0] = MASKED_LOGIT
            if self.uniform_fraction:
                logits = self.family.with_noise(logits, np.full(len(logits), self.uniform_fraction, np.float32))
            return logits, memory

        return act


class CriticEnsemble(nn.Module):
    """An ensemble of critics that share only the torso. Each gives a value of every action, or of given actions.

    Args:
        blueprint: Its `critic` layers precede each output. Without them, critics of given actions have one hidden layer
            as wide as the features.
        torso: The torso, which is trained with the critics.
        encoded_size: Size of an encoded action that the critics read with the features; 0: no action.
        n_values: Number of values of a critic: the number of actions, or 1 for critics of given actions.
        count: Number of critics.
        value_shape: Shape of a value: () for scalars, (N,) for the logits of N atoms.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        torso: Torso,
        encoded_size: int,
        n_values: int,
        count: int,
        value_shape: tuple[int, ...] = (),
    ):
        super().__init__()
        layers = blueprint.critic or (Mlp(torso.size) if encoded_size else None)
        inputs, outputs = torso.size + encoded_size, n_values * prod(value_shape)
        self.critics: Any = nn.ModuleList(_Critic(inputs, outputs, layers) for _ in range(count))
        self.torso = torso  # last: then a policy's own layers and the torso are contiguous in the flat parameters
        self.n_values, self.value_shape = n_values, value_shape
        self.precision = torch.float32
        self.manual_stacks: Sequence[ManualStack] = ()  # the critics, if gradients are computed by hand

    def use_manual_passes(self) -> None:
        """Compute gradients by hand in passes of given actions, if all layers support it."""
        if self.precision is torch.float32 and self.n_values == 1:
            self.manual_stacks = make_manual_stacks([(critic.layers, critic.head) for critic in self.critics])

    def run(self, inputs: Tensor, critic_indices: Sequence[int] | None = None, *, differentiates: bool = False) -> Pass:
        """Return the pass of M critics of given actions, with outputs [M, ..., *value_shape].

        Args:
            inputs: Features and encoded action of each row [..., F + encoded_size]; with gradient only if the loss of
                the pass trains the torso.
            critic_indices: The M critics; None: all.
            differentiates: Whether the gradient of the inputs is needed, which have none otherwise.
        """
        if self.manual_stacks and not inputs.requires_grad:
            stacks = _select(self.manual_stacks, critic_indices)
            return ManualPass(stacks, inputs, (len(stacks), *inputs.shape[:-1], *self.value_shape))
        inputs = inputs.requires_grad_() if differentiates else inputs
        return AutogradPass(self._evaluate(inputs, critic_indices, self.value_shape), inputs)

    def forward(
        self, features: Tensor, actions: Tensor | None = None, critic_indices: Sequence[int] | None = None
    ) -> Tensor:
        """Compute the values of M critics.

        Args:
            features: Features [..., F].
            actions: Encoded actions [..., K, encoded_size], K for each row of features; None: every action.
            critic_indices: The M critics to evaluate; None: all.

        Returns:
            Values [M, ..., K, *value_shape] of the given actions (`n_values` is then 1), or [M, ..., n_values,
            *value_shape] of every action.
        """
        if actions is None:
            return self._evaluate(features, critic_indices, (self.n_values, *self.value_shape))
        inputs = torch.cat((features.unsqueeze(-2).expand(*actions.shape[:-1], -1), actions), -1)
        return self._evaluate(inputs, critic_indices, self.value_shape)

    def _evaluate(self, inputs: Tensor, critic_indices: Sequence[int] | None, shape: tuple[int, ...]) -> Tensor:
        """Return the outputs [M, ..., *shape] of M critics at inputs [..., F]."""
        selected = _select(self.critics, critic_indices)
        # Flattened once here, otherwise every layer would flatten the rows.
        hidden = self._compute_hidden(inputs.flatten(0, -2), selected)
        values = torch.stack([critic.head.forward(x) for critic, x in zip(selected, hidden, strict=True)])
        return values.view(len(values), *inputs.shape[:-1], *shape)

    @run_in_precision
    def _compute_hidden(self, x: Tensor, critics: Iterable[_Critic]) -> list[Tensor]:
        return [critic.layers.forward(x) for critic in critics]


def _select(parts: Any, indices: Sequence[int] | None) -> Any:
    """Return the parts with some indices; None: all."""
    return parts if indices is None else [parts[index] for index in indices]


class _Critic(nn.Module):
    def __init__(self, inputs: int, outputs: int, layers: BranchFactory | None):
        super().__init__()
        self.layers: Any = build_module(layers, inputs, "forward") if layers else nn.Identity()
        self.head = make_orthogonal_linear(getattr(self.layers, "size", inputs), outputs, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class GreedyQPolicy(CombinationPolicy):
    """An epsilon-greedy policy: the combination of discrete actions with the highest mean value over the critics.

    Each branch takes its part of the best combination with probability 1 - epsilon, otherwise an allowed action at
    random.

    Args:
        critics: Critics with outputs for each of K combinations.
        compute_values: Returns the values [..., K] of their outputs [..., K, *v].
        family: The distributions of the discrete branches.
        obs_specs: Observations by name; an action mask among them restricts the actions.
        epsilon: Probability of a random action, from 0 to 1.
    """

    is_differentiable = False

    def __init__(
        self,
        critics: CriticEnsemble,
        compute_values: Callable[[Tensor], Tensor],
        family: HybridFamily,
        obs_specs: Mapping[str, ObsSpec],
        epsilon: float,
    ):
        super().__init__(obs_specs, family.branches)
        self.critics, self.torso, self.family, self.epsilon = critics, critics.torso, family, epsilon
        self.compute_values = compute_values

    def select_best(self, features: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the best allowed combination as one-hot actions of all branches.

        Args:
            features: Features [n, ..., F].
            obs: Observations {name: [m, ...]} with m >= n; the mask of the first n rows is used.

        Returns:
            One-hot actions [n, ..., sum of branches].
        """
        values = self.mask_logits(self.compute_values(self.critics(features)).mean(0), obs)
        return self.combination_codes[values.argmax(-1)]

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        codes = self.select_best(features, obs)
        mask = (obs[ACTION_MASK] > 0).float() if self.has_mask else torch.ones_like(codes)
        probs = []
        for code, allowed in zip(*(part.split(self.branches, -1) for part in (codes, mask)), strict=True):
            # A branch with all actions forbidden counts as unmasked.
            allowed = allowed + (1 - allowed.sum(-1, keepdim=True).clamp(max=1))
            probs.append((1 - self.epsilon) * code + self.epsilon * allowed / allowed.sum(-1, keepdim=True))
        return torch.cat(probs, -1).log().clamp(min=MASKED_LOGIT), memory
