"""Playing with the trained agents of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.networks import FlatParameters
from algorithm.runs.agent_config import AgentConfig, AgentConfigs
from algorithm.runs.components_builder import make_agent
from algorithm.runs.make_env import Environments
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.seeding import RunSeeds, draw_seed
from algorithm.runs.torch_setup import choose_acting_device, configure_torch
from algorithm.specs import Role
from algorithm.training.evaluator import EvaluationResult, Evaluator, get_mode_name


def play(
    settings: Settings,
    folder: RunFolder,
    episodes: int,
    greedy: bool,
    render: bool = False,
    ckpt: str | None = None,
    n_envs: int | None = None,
    log: Callable[[str], None] = print,
    new_episodes: bool = False,
) -> dict[str, EvaluationResult]:
    """Play whole episodes with the trained agents of a run.

    They repeat the evaluation of the same weights, if mode, number of episodes and number of environments are the same.

    Args:
        settings: the settings of the run.
        folder: the run folder.
        episodes: the least number of episodes of each role.
        greedy: whether actions are greedy; otherwise they are sampled.
        render: whether the environments are shown.
        ckpt: the checkpoint, by its env steps or its folder; None for the best.
        n_envs: the number of environments; None for the number that an evaluation uses.
        log: receives lines for the user.
        new_episodes: whether the episodes differ from the episodes of the evaluation.

    Returns:
        {role or team: result}.
    """
    configure_torch()
    checkpoint = folder.find_checkpoint(ckpt, log)
    env_steps = checkpoint.counters.env_steps
    log(f"playing {folder} after {env_steps:,} env steps, {get_mode_name(greedy)}")
    seeds = RunSeeds(settings.base.seed)
    seed = draw_seed(seeds.make_play_seeds()) if new_episodes else seeds.get_evaluation_seed(env_steps)
    configs = AgentConfigs(settings)
    agents: dict[str, Agent] = {}

    def get_agent(role: str) -> Agent:
        if role not in agents:
            if role not in checkpoint.roles:
                raise UserError(
                    f"the environment has a role {role!r} that had not appeared in {folder} after {env_steps:,} env "
                    "steps: train longer (--resume)"
                )
            agents[role] = load_agent(configs.for_role(role), folder, checkpoint, role, adapter.roles[role])
        return agents[role]

    environments = Environments(settings, folder)
    adapter = environments.open(n_envs or environments.count_evaluation_envs(), render)
    try:
        return Evaluator(adapter, get_agent, greedy).play(episodes, seed)
    finally:
        adapter.close()


def load_agent(config: AgentConfig, folder: RunFolder, checkpoint: Checkpoint, name: str, role: Role) -> Agent:
    """Return the agent of a role with the weights of a checkpoint, in evaluation mode.

    Args:
        config: the settings of the role.
        folder: the run folder, with the network.
        checkpoint: the checkpoint.
        name: the name of the role.
        role: the role.

    Raises:
        CheckpointError: the weights are damaged, or do not fit the network in `folder`.
    """
    agent = make_agent(config, folder, role, np.random.default_rng(RunSeeds(config.seed).make_play_seeds()))
    parameters = FlatParameters(
        {group: parameter_group.module for group, parameter_group in agent.groups.items()},
        agent.target_networks,
        agent.running_statistics(),
        choose_acting_device(config.placement, agent, role),
    )
    weights = checkpoint.weights(name)
    try:
        parameters.load(weights)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder}: {error}") from error
    agent.policy.eval()
    return agent


def check_network(settings: Settings, folder: RunFolder) -> None:
    """Raise CheckpointError if the weights of the newest checkpoint do not fit the network in `folder`."""
    configs = AgentConfigs(settings)
    for name, role in folder.read_roles().items():
        load_agent(configs.for_role(name), folder, folder.find_latest(), name, role)
