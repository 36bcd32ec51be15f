"""A trained agent in your own code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.experiment.assembly import load_agent
from algorithm.experiment.errors import UserError
from algorithm.experiment.process import prepare_process
from algorithm.experiment.run_folder import RunFolder
from algorithm.rollout import Step
from algorithm.specs import Role


def load(path: str | Path, role: str | None = None, disable_sample: bool = False) -> Player:
    """The agent of a run folder, with the weights that did best on held-out episodes.

    `role` may be left out where there is one. `disable_sample` acts greedily. The run folder's nn.py is executed.
    Raises UserError or CheckpointError, naming what is missing.
    """
    prepare_process()
    folder = RunFolder(Path(path))
    settings, roles = folder.settings(), folder.roles()
    if role is None and len(roles) > 1:
        raise UserError(f"{path} has several roles; say which: {', '.join(roles)}")
    name = role or next(iter(roles), None)
    if name not in roles:
        raise UserError(f"{path} has no role {name!r}; there is {', '.join(roles) or 'none'}")
    return Player(load_agent(settings, folder, folder.best(), name, roles[name]), roles[name], disable_sample)


class Player:
    """Acts on observations as the environment gives them; one at a time, or a batch of as many lanes as it likes.

    The number of lanes is fixed by the first call after `reset`.
    """

    def __init__(self, agent: Agent, role: Role, disable_sample: bool = False):
        self.agent, self.role, self.disable_sample = agent, role, disable_sample
        self.reset()

    def reset(self) -> None:
        """Say that an episode starts in every lane."""
        self._memory: np.ndarray | None = None

    def act(self, obs: np.ndarray | Mapping[str, np.ndarray]):
        """Actions in the environment's own units and dtype: one for one observation, [n, ...] for a batch [n, ...]."""
        specs = self.role.obs_specs
        named = obs if isinstance(obs, Mapping) else {next(iter(specs)): obs}
        arrays = {name: np.asarray(named[name], spec.dtype) for name, spec in specs.items()}
        name, spec = next(iter(specs.items()))
        single = arrays[name].shape == spec.shape
        if single:
            arrays = {name: value[None] for name, value in arrays.items()}
        if any(arrays[name].shape[1:] != spec.shape for name, spec in specs.items()):
            shapes = {name: spec.shape for name, spec in specs.items()}
            raise ValueError(f"observations have the shapes {shapes}, one more axis in front for a batch")
        n = len(arrays[name])
        if self._memory is None or not self.agent.state:
            self._memory = np.zeros((n, self.agent.state), np.float32)
        elif len(self._memory) != n:
            raise ValueError(f"{n} lanes after {len(self._memory)}: call reset() where episodes start")
        no, yes = np.zeros(n, bool), np.ones(n, bool)
        step = Step(np.arange(n), arrays, no, no, np.zeros(n, np.float32), yes)
        decision = (self.agent.greedy if self.disable_sample else self.agent.act)(step, self._memory)
        self._memory = decision.memory
        actions = self.role.action_spec.native(decision.action)
        return actions[0] if single else actions
