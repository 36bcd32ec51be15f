"""The critic and the networks of ACER: one network, or a policy and a critic that share no parameters."""

from __future__ import annotations

from math import inf

from algorithm.agents.acer.critics import ActionValueCritic, Critic, StateValueCritic, StochasticDuelingCritic
from algorithm.agents.acer.settings import AcerSettings
from algorithm.agents.actor_critic import make_parameter_group, make_std_head
from algorithm.agents.agent import ParameterGroup
from algorithm.distributions import CategoricalFamily, ClosedFormDistribution, DistributionFamily
from algorithm.networks import ActorCritic, Blueprint, SeparateCritic, collect_noise
from algorithm.networks.constraints import has_constraints
from algorithm.networks.normalization import find_batch_norms
from algorithm.specs import Role


def make_critic(settings: AcerSettings, family: DistributionFamily[ClosedFormDistribution], n_streams: int) -> Critic:
    """Return the critic: Q of each action of a single discrete branch; stochastic dueling for all other actions.

    Raises:
        ValueError: There are reward streams, but no state values.
    """
    if settings.critic == "state_value":
        return StateValueCritic(n_streams)
    if n_streams:
        raise ValueError("critic action_value has no values of reward streams; use state_value")
    if isinstance(family, CategoricalFamily):
        return ActionValueCritic(family.statistics_size)
    return StochasticDuelingCritic(family, settings.sdn_samples)


def make_policy(
    settings: AcerSettings, blueprint: Blueprint, role: Role, statistics_size: int, critic: Critic
) -> ActorCritic:
    """Return the network of the policy, which has the outputs of the critic unless the trust region is full."""
    std_head = make_std_head(settings, role.action_spec)
    n_values, encoded_size = (0, 0) if settings.trust_region == "full" else (critic.n_values, critic.encoded_size)
    return ActorCritic(blueprint, role.obs_specs, statistics_size, n_values, std_head, encoded_size)


def make_separate_critic(
    settings: AcerSettings, blueprint: Blueprint, policy: ActorCritic, critic: Critic
) -> SeparateCritic | None:
    """Return the critic of a policy in a full trust region; None if the policy's network has the critic's outputs.

    The critic's step would leave the trust region if it changed layers of the policy.

    Raises:
        ValueError: The policy has noisy layers, batch norms or constraints of weights, or augments its observations.
    """
    if settings.trust_region != "full":
        return None
    if blueprint.augmentations:
        raise ValueError(
            "trust_region full does not support augmentations, since each evaluation of its line search would draw "
            "others; remove `augmentations` from the blueprint, or use trust_region efficient"
        )
    if collect_noise([policy]):
        raise ValueError(
            "trust_region full does not support noisy layers, since their noise changes the policy after every step; "
            "use Mlp in place of NoisyMlp, or trust_region efficient"
        )
    if find_batch_norms([policy]) or has_constraints(policy):
        raise ValueError(
            "trust_region full does not support batch norms, unit weights or spectral norms in the policy, since they "
            "change it after the line search; use the norm layer or rms alone, or trust_region efficient"
        )
    return SeparateCritic(blueprint, policy.torso.size, critic.n_values, critic.encoded_size)


def make_groups(
    settings: AcerSettings, policy: ActorCritic, separate_critic: SeparateCritic | None
) -> dict[str, ParameterGroup]:
    """Return the group of the network, or the groups of the policy and of its separate critic."""
    group = make_parameter_group(settings, separate_critic or policy, settings.learning_rate, settings.max_grad_norm)
    if not separate_critic:
        return {"acer": group}
    policy_group = ParameterGroup(
        module=policy,
        learning_rate=settings.trust_region_kl,
        learning_rate_schedule=settings.learning_rate_schedule,
        learning_rate_final_fraction=settings.learning_rate_final_fraction,
        optimizer="natural",
        max_grad_norm=inf,  # the length of the gradient has no effect on the step
        cg_iterations=settings.trust_region_iterations,
        damping=settings.trust_region_damping,
        max_halvings=settings.trust_region_halvings,
    )
    return {"policy": policy_group, "critic": group}
