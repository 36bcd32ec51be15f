"""A trained agent of a run, or of a checkpoint in training, for use in a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.wrappers import OBSERVATION_NAMES, PREVIOUS_REWARD, PreviousTracker, find_previous_kinds
from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import preserve_process_state
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.parts.components_builder import build_agent, load_agent
from algorithm.parts.hub import PREFIX, download_run, read_shared_weights
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import configure_torch
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK, Role, drop_team, split_observation
from algorithm.training.components import TrainingComponents


def load(
    path: str | Path, role: str | None = None, disable_sample: bool | None = None, trust_code: bool = False
) -> TrainedAgent:
    """Return the agent of a run folder, with the weights that were best on evaluation episodes.

    The run folder's nn.py is executed.

    Args:
        path: the run folder; or `hf://user/name`, with `@revision`, a run on the Hugging Face Hub.
        role: may be left out if the run has a single role.
        disable_sample: True: greedy actions; False: sampled ones; None: as evaluation and `--run` choose them
            (`base_config.evaluate_greedy` of the run). `TrainedAgent.disable_sample` holds the choice.
        trust_code: whether Python files of a run on the hub may be executed.

    Raises:
        UserError: There is no such run or role, or the code of a run on the hub is not trusted.
        CheckpointError: No checkpoint can be read.
    """
    configure_torch()
    is_shared = str(path).startswith(PREFIX)
    folder = download_run(str(path), trust_code) if is_shared else RunFolder(Path(path))
    settings, roles = folder.load_settings(), folder.read_roles()
    name = _choose_role(role, roles, path)
    greedy = settings.base.evaluate_greedy if disable_sample is None else disable_sample
    if is_shared:
        agent = build_agent(settings, folder, name, roles[name], read_shared_weights(folder, name), folder.path)
    else:
        agent = load_agent(settings, folder, folder.read_checkpoint(None), name, roles[name])
    return TrainedAgent(agent, roles[name], greedy)


def copy_agent(
    settings: Settings,
    folder: RunFolder,
    training: TrainingComponents,
    role: str | None = None,
    disable_sample: bool | None = None,
) -> TrainedAgent:
    """Return a copy of an agent in training, with `role` and `disable_sample` as in `load`; training is unchanged."""
    name = _choose_role(role, training.by_role, folder.path)
    greedy = settings.base.evaluate_greedy if disable_sample is None else disable_sample
    components = training.by_role[name]
    with preserve_process_state():
        weights = components.learner.parameters.state()
        agent = build_agent(settings, folder, name, components.role, weights, folder.path)
    return TrainedAgent(agent, components.role, greedy)


def _choose_role(role: str | None, roles: Collection[str], path: str | Path) -> str:
    """Return `role`, or the only role of the run `path` for None. Raises UserError if the run has no such role."""
    if role is None and len(roles) > 1:
        raise UserError(f"{path} has several roles; pass one of them: {', '.join(roles)}")
    name = role or next(iter(roles), "")
    if name not in roles:
        raise UserError(f"{path} has no role {name!r}; its roles are {', '.join(roles) or 'none'}")
    return name


class TrainedAgent:
    """A trained agent that selects actions for observations in the form in which the environment returns them.

    It takes one observation, or a batch of observations of several agents. The first call after `reset` fixes the size
    of the batch.
    """

    def __init__(self, agent: Agent, role: Role, disable_sample: bool = False):
        self.agent, self.role, self.disable_sample = agent, role, disable_sample
        self._memory: np.ndarray | None = None  # [n, state_size]; None without one, or before episodes

    def reset(self) -> None:
        """Start a new episode in every environment of the batch."""
        self._memory = None

    def act(self, obs: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """Return an action for one observation, or a batch of actions for a batch, in the environment's form and units.

        Args:
            obs: Observation; in a batch every array has one more leading axis, also each array of a dict or a tuple.
            action_mask: The value of `info["action_mask"]`, for an environment that returns masks there.
            reward: Reward of the last action, for agents that observe it; None at the start of an episode.

        Raises:
            ValueError: An argument has another form than in training, or the size of the batch has changed.
        """
        arrays, single = self._read_observations(obs, action_mask)
        n = len(next(iter(arrays.values())))
        first, memory, previous_kinds = np.full(n, self._memory is None), self._memory, find_previous_kinds(self.role)
        if memory is None:
            memory = np.zeros((n, self.agent.state_size), np.float32)
            self._previous = PreviousTracker(previous_kinds, n, self.role.action_spec)
        elif len(memory) != n:
            raise ValueError(f"{n} observations after {len(memory)}: call reset() when episodes start")
        lanes, rewards = np.arange(n), self._read_rewards(reward, first)
        step = Step(
            lane=lanes,
            obs=arrays | self._previous(lanes, first, rewards),
            first=first,
            is_bootstrap_row=np.zeros(n, bool),
            reward=rewards,
            alive=np.ones(n, bool),
        )
        decision = (self.agent.greedy if self.disable_sample else self.agent.act)(step, memory)
        self._memory = decision.memory if self.agent.state_size or previous_kinds else None
        self._previous.record_action(lanes, decision.action)
        actions = self.role.action_spec.to_env_units(decision.action)
        return _select_first(actions) if single else actions

    def _read_rewards(self, reward: Any, first: np.ndarray) -> np.ndarray:
        """Return rewards [n], 0 at the start of episodes."""
        if reward is None:
            if PREVIOUS_REWARD in self.role.obs_specs and not first.all():
                raise ValueError("this role observes its last reward: call act(obs, reward=reward)")
            return np.zeros(len(first), np.float32)
        rewards = np.atleast_1d(np.asarray(reward, np.float32))
        if rewards.shape != first.shape:
            raise ValueError(f"{rewards.size} rewards for {len(first)} observations")
        return rewards

    def _read_observations(self, obs: Any, action_mask: Any) -> tuple[dict[str, np.ndarray], bool]:
        """Return the agent's observations {name: [n, ...]}, and whether `obs` is a single one."""
        own = drop_team(self.role.obs_specs)
        specs = {name: spec for name, spec in own.items() if name not in OBSERVATION_NAMES.values()}
        mask_in_obs = isinstance(obs, Mapping) and ACTION_MASK in obs
        is_masked = not mask_in_obs and specs.pop(ACTION_MASK, None) is not None
        if is_masked and action_mask is None:
            raise ValueError('the actions of this role are masked: call act(obs, info["action_mask"])')
        if not is_masked and action_mask is not None:
            raise ValueError("action_mask: no mask was in the infos that this role was trained with")
        named_obs = split_observation(obs, specs)
        if missing := [name for name in specs if name not in named_obs]:
            raise ValueError(f"observation {missing[0]!r} is missing; expected {', '.join(specs)}")
        shapes = {name: np.shape(named_obs[name]) for name in specs}
        expected = {name: spec.effective_env_shape for name, spec in specs.items()}
        single = shapes == expected
        n = next((shape[0] for shape in shapes.values() if shape and not single), 1)
        if not single and shapes != {name: (n, *shape) for name, shape in expected.items()}:
            raise ValueError(
                f"observations have the shapes {expected}, with one more leading axis for a batch; not {shapes}"
            )
        arrays = {
            name: spec.encode(np.asarray(named_obs[name])[None] if single else named_obs[name])
            for name, spec in specs.items()
        }
        if is_masked:
            masks = [action_mask] if single else action_mask
            if len(masks) != n:
                raise ValueError(f"{len(masks)} masks for {n} observations")
            arrays[ACTION_MASK] = np.stack([self.role.action_spec.flatten_mask(mask) for mask in masks])
        return arrays, single


def _select_first(actions: Any) -> Any:
    """Return the only action of a batch of one."""
    if isinstance(actions, dict):
        return {key: value[0] for key, value in actions.items()}
    return tuple(value[0] for value in actions) if isinstance(actions, tuple) else actions[0]
