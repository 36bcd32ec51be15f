"""A trained agent in your own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.wrappers.previous_action_reward import (
    OBSERVATION_NAMES,
    PREVIOUS_REWARD,
    PreviousTracker,
    find_previous_kinds,
)
from algorithm.agents.agent import Agent
from algorithm.errors import UserError
from algorithm.rollout import Step
from algorithm.runs.play import load_agent
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.torch_setup import configure_torch
from algorithm.specs import ACTION_MASK, Role, split_observation


def load(path: str | Path, role: str | None = None, disable_sample: bool | None = None) -> TrainedAgent:
    """Return the agent of a run folder, with the weights that were best on evaluation episodes.

    The run folder's nn.py is executed.

    Args:
        path: the run folder.
        role: may be left out if the run has a single role.
        disable_sample: True: greedy actions; False: sampled ones; None: as evaluation and `--run` choose them
            (`base_config.evaluate_greedy` of the run). `TrainedAgent.disable_sample` holds the choice.

    Raises:
        UserError, CheckpointError: naming what is missing.
    """
    configure_torch()
    folder = RunFolder(Path(path))
    settings, roles = folder.load_settings(), folder.read_roles()
    if role is None and len(roles) > 1:
        raise UserError(f"{path} has several roles; say which: {', '.join(roles)}")
    name = role or next(iter(roles), None)
    if name not in roles:
        raise UserError(f"{path} has no role {name!r}; there is {', '.join(roles) or 'none'}")
    greedy = settings.base.evaluate_greedy if disable_sample is None else disable_sample
    return TrainedAgent(load_agent(settings, folder, folder.find_best(), name, roles[name]), roles[name], greedy)


class TrainedAgent:
    """Acts on observations as the environment gives them; one at a time, or a batch of as many lanes as it likes.

    The number of lanes is fixed by the first call after `reset`.
    """

    def __init__(self, agent: Agent, role: Role, disable_sample: bool = False):
        self.agent, self.role, self.disable_sample = agent, role, disable_sample
        self.reset()

    def reset(self) -> None:
        """Say that an episode starts in every lane."""
        self._memory: np.ndarray | None = None

    def act(self, obs: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """Actions in the environment's own units and form: one for one observation, a batch for a batch.

        A batch has one more axis in front of every array, in a dict or tuple too. `action_mask` is what
        `info["action_mask"]` holds, where that is how the environment tells it; `reward` what the last action brought,
        for agents that observe it (nothing at an episode's start). Raises ValueError for what does not fit.
        """
        arrays, single = self._read_observations(obs, action_mask)
        n = len(next(iter(arrays.values())))
        first = np.full(n, self._memory is None or not self._has_memory)
        if first.all():
            self._memory = np.zeros((n, self.agent.state_size), np.float32)
            self._previous = PreviousTracker(find_previous_kinds(self.role), n, self.role.action_spec)
        elif len(self._memory) != n:
            raise ValueError(f"{n} lanes after {len(self._memory)}: call reset() where episodes start")
        lanes, all_false, all_true = np.arange(n), np.zeros(n, bool), np.ones(n, bool)
        rewards = self._read_rewards(reward, first)
        step = Step(
            lane=lanes,
            obs=arrays | self._previous(lanes, first, rewards),
            first=first,
            is_bootstrap_row=all_false,
            reward=rewards,
            alive=all_true,
        )
        decision = (self.agent.greedy if self.disable_sample else self.agent.act)(step, self._memory)
        self._memory = decision.memory
        self._previous.record_action(lanes, decision.action)
        actions = self.role.action_spec.to_env_units(decision.action)
        return _select_first(actions) if single else actions

    @property
    def _has_memory(self) -> bool:
        return bool(self.agent.state_size or find_previous_kinds(self.role))

    def _read_rewards(self, reward: Any, first: np.ndarray) -> np.ndarray:
        """[n]"""
        if reward is None:
            if PREVIOUS_REWARD in self.role.obs_specs and not first.all():
                raise ValueError("this role observes its last reward: call act(obs, reward=reward)")
            return np.zeros(len(first), np.float32)
        rewards = np.atleast_1d(np.asarray(reward, np.float32))
        if rewards.shape != first.shape:
            raise ValueError(f"{rewards.size} rewards for {len(first)} observations")
        return rewards

    def _read_observations(self, obs: Any, action_mask: Any) -> tuple[dict[str, np.ndarray], bool]:
        """What the agent sees, {name: [n, ...]}, and whether it is one observation."""
        specs = {name: spec for name, spec in self.role.obs_specs.items() if name not in OBSERVATION_NAMES.values()}
        mask_in_obs = isinstance(obs, Mapping) and ACTION_MASK in obs
        is_masked = not mask_in_obs and specs.pop(ACTION_MASK, None) is not None
        if is_masked and action_mask is None:
            raise ValueError('the actions of this role are masked: call act(obs, info["action_mask"])')
        if not is_masked and action_mask is not None:
            raise ValueError("action_mask: no mask was in the infos that this role was trained with")
        named_obs = split_observation(obs, specs)
        if missing := [name for name in specs if name not in named_obs]:
            raise ValueError(f"there is no observation {missing[0]!r}; there must be {', '.join(specs)}")
        shapes, expected = (
            {name: np.shape(named_obs[name]) for name in specs},
            {name: spec.effective_env_shape for name, spec in specs.items()},
        )
        single = shapes == expected
        n = next((shape[0] for shape in shapes.values() if shape and not single), 1)
        if not single and shapes != {name: (n, *shape) for name, shape in expected.items()}:
            raise ValueError(
                f"observations have the shapes {expected}, one more axis in front for a batch; not {shapes}"
            )
        arrays = {
            name: spec.encode(np.asarray(named_obs[name])[None] if single else named_obs[name])
            for name, spec in specs.items()
        }
        if is_masked:
            arrays[ACTION_MASK] = self._read_masks([action_mask] if single else action_mask, n)
        return arrays, single

    def _read_masks(self, masks: Sequence[Any], n: int) -> np.ndarray:
        """[n, sum of branches]"""
        if len(masks) != n:
            raise ValueError(f"{len(masks)} masks for {n} observations")
        return np.stack([self.role.action_spec.flatten_mask(mask) for mask in masks])


def _select_first(actions: Any) -> Any:
    """The single action of a batch of one."""
    if isinstance(actions, dict):
        return {key: value[0] for key, value in actions.items()}
    return tuple(value[0] for value in actions) if isinstance(actions, tuple) else actions[0]
