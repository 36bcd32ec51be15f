"""The settings of each agent of a run, as records for the code that builds the agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from algorithm.agents.agent import Agent
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.config.sections import ReplayConfig
from algorithm.parts.torch_setup import PlacementConfig


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """A record of the settings of one agent.

    Attributes:
        make_agent: class of the algorithm.
        section: name of the section with the settings of the algorithm, for messages.
        settings: settings dataclass of the algorithm.
        replay: settings of the replay.
        network_file: file of the network in the run folder, `base_config.nn`.
        network_arguments: arguments of the blueprint in this file, `nn_config`.
        auxiliaries: settings of each auxiliary reward or loss, by its name.
        explorer: arguments of the explorer, by its name; at most one.
        placement: devices and precision.
        seed: seed of the run, from which the seeds of the agent follow.
        max_step: env steps at which the run ends; None: never.
    """

    make_agent: type[Agent]
    section: str
    settings: Any
    replay: ReplayConfig
    network_file: str
    network_arguments: Mapping[str, Any]
    auxiliaries: Mapping[str, Any]
    explorer: Mapping[str, Any]
    placement: PlacementConfig
    seed: int
    max_step: int | None


class AgentConfigs:
    """The records of all agents of a run, by role, since a role may appear while a run trains.

    Attributes:
        default: Record of a role without separate settings.
        by_role: Records of the roles with separate settings (`ma_config`).
    """

    def __init__(self, settings: Settings):
        """Resolve the settings of a run, and the settings of its roles."""
        self.default = make_agent_config(settings)
        self.by_role = {role: make_agent_config(role_settings) for role, role_settings in settings.roles.items()}

    def for_role(self, role: str) -> AgentConfig:
        """Return the record of a role, or of the agent with this name."""
        return self.by_role.get(role, self.default)


def make_agent_config(settings: Settings) -> AgentConfig:
    """Return the record of one agent, from the settings of its role; with several learners, for each of them."""
    base, learners = settings.base, settings.n_learners
    device = "cpu" if (base.has_workers or learners > 1) and base.device == "auto" else base.device
    return AgentConfig(
        make_agent=find_class("algorithm", base.algorithm),
        section=settings.agent_section,
        settings=_divide_batches(settings.agent, learners),
        replay=settings.replay.model_copy(update={"capacity": settings.replay.capacity // learners}),
        network_file=base.nn,
        network_arguments=settings.nn,
        auxiliaries=settings.auxiliaries,
        explorer=settings.explorer,
        placement=PlacementConfig(
            device=device,
            precision=base.precision,
            inference_device=base.inference_device,
        ),
        seed=base.seed,
        max_step=base.max_step,
    )


def _divide_batches(settings: Any, learners: int) -> Any:
    """Return the settings of an algorithm for one of several learners, whose batches form one batch.

    A round has a rollout of each learner, which `replay_ratio` batches follow in a run with one learner.
    """
    if learners == 1 or not settings.uses_replay:
        return settings
    ratio = settings.replay_ratio
    return replace(
        settings,
        batch_size=settings.batch_size // learners,
        replay_ratio=ratio and ratio * learners,  # None: in proportion to the rows of the rollouts
        learning_starts=-(-settings.learning_starts // learners),
    )
