"""Opponents of a run with self-play: past versions of its agents, other runs and random policies; their ratings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.self_play import Opponents
from algorithm.agents.agent import Agent
from algorithm.atomic_io import resolve_inside
from algorithm.checkpointing.checkpoint import Checkpoint, Manifest, preserve_process_state, write_weights
from algorithm.config.loader import Settings
from algorithm.config.sections import OpponentConfig
from algorithm.errors import UserError
from algorithm.parts.components_builder import load_agent
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.warm_start import find_run
from algorithm.program import metric_suffix
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK
from algorithm.training.components import TrainingComponents

SETTING = "opponent_config.opponents"
LATEST, PAST, RANDOM = "latest", "past", "random"  # opponents: the agents in training, past versions, any action
VERSION = "@"  # the name of a past version is this and its env steps
FOLDER = "opponents"  # in a run folder: the weights of past versions
RATING_SCALE = 400.0  # of Elo's ratings: a difference with which the better player has 10 points for each of the other


class Players(Opponents):
    """Opponents of every kind, by name: `LATEST`, `RANDOM`, `VERSION` and env steps, or RUN[@CHECKPOINT].

    Args:
        settings: the settings of the run.
        folder: the run folder.
    """

    def __init__(self, settings: Settings, folder: RunFolder):
        self.config: OpponentConfig = settings.opponent
        self.rng = np.random.default_rng(settings.base.seed)
        self._settings, self._folder = settings, folder
        self._agents: dict[tuple[str, str], Agent] = {}  # by opponent and role, those that were played last
        self._training: TrainingComponents | None = None

    def connect(self, training: TrainingComponents) -> None:
        """Receive the components of the run, whose agents play."""
        self._training = training

    @property
    def training(self) -> TrainingComponents:
        """Return the components of the run."""
        assert self._training is not None
        return self._training

    def get_state_size(self, role: str) -> int:
        return self.training.get(role).agent.state_size

    def act(self, opponent: str, role: str, step: Step, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if opponent == RANDOM:
            spec = self.training.get(role).role.action_spec
            return spec.sample(self.rng, len(memory), step.obs.get(ACTION_MASK)), memory
        agent = self._find_agent(opponent, role)
        before, agent.rng = agent.rng, self.rng
        try:
            decision = agent.act(step, memory)
        finally:
            agent.rng = before
        return decision.action, decision.memory

    def _find_agent(self, opponent: str, role: str) -> Agent:
        """Return the agent of an opponent; only those of the last opponents are kept in memory."""
        if opponent == LATEST:
            return self.training.get(role).agent
        if (opponent, role) not in self._agents:
            self._agents = {key: agent for key, agent in self._agents.items() if key[0] in (opponent, self.opponent)}
            with preserve_process_state():
                self._agents[opponent, role] = self._load(opponent, role)
        return self._agents[opponent, role]

    def _load(self, opponent: str, role: str) -> Agent:
        """Return the agent of an opponent, whose memory has the size of that of the agent in training."""
        known = self.training.get(role)
        if opponent.startswith(VERSION):
            path = get_version_folder(self._folder.path, opponent)
            try:
                checkpoint = Checkpoint(resolve_inside(self._folder.path, path.relative_to(self._folder.path)))
            except ValueError as error:
                raise UserError(f"{SETTING}: {error}") from error
            Manifest.read(checkpoint.folder).check()
            return load_agent(self._settings, self._folder, checkpoint, role, known.role)
        folder, which = find_run(opponent, self._folder.path.parent, SETTING)
        roles = folder.read_roles()
        other = roles.get(role)
        if other is None or (other.obs_specs, other.action_spec) != (known.role.obs_specs, known.role.action_spec):
            raise UserError(f"{SETTING}: {opponent} has no role {role} with the observations and actions of this run")
        agent = load_agent(folder.load_settings(), folder, folder.read_checkpoint(which), role, other)
        if agent.state_size != known.agent.state_size:
            raise UserError(f"{SETTING}: the memory of {opponent} has another size than that of this run")
        return agent


class OpponentPool(Players):
    """The opponents of training, with the rating of each agent and version.

    A rating is changed by the result of each episode, as Elo's with K = 1; versions keep that of their time, and other
    opponents have `initial_elo`.
    """

    def __init__(self, settings: Settings, folder: RunFolder):
        super().__init__(settings, folder)
        config = self.config
        if config.opponents and (settings.base.has_workers or settings.base.is_on_cluster):
            raise UserError(f"{SETTING} is for runtime LOCAL, not for {settings.base.runtime}")
        self.opponent = LATEST
        self.versions: list[str] = []  # the last `window` ones
        self.ratings: dict[str, float] = {}  # of the agents in training, by role
        self._version_ratings: dict[str, dict[str, float]] = {}
        self._env_steps = 0

    def connect(self, training: TrainingComponents) -> None:
        """Receive the components of the run, and check that other runs can play its roles."""
        super().connect(training)
        for name in (*self.config.opponents, self.config.evaluation_opponent):
            if self.config.opponents and name not in (LATEST, PAST, RANDOM):
                find_run(name, self._folder.path.parent, SETTING)
                for role in training.by_role:
                    self._find_agent(name, role)

    def choose_team(self, teams: Sequence[str], game: int) -> str:
        every = self.config.team_change
        return teams[(game if every is None else self._env_steps // every) % len(teams)]

    def get_rating(self, role: str) -> float:
        """Return the rating of the agent of a role or a team."""
        teams = {team: name for name, each in self.training.by_role.items() for team in each.role.teams}
        return self.ratings.get(teams.get(role, role), self.config.initial_elo)

    def count(self, env_steps: int) -> None:
        before, self._env_steps = self._env_steps, self._env_steps + env_steps
        has_past = PAST in self.config.opponents
        if has_past and (not self.versions or _is_crossed(before, self._env_steps, self.config.save_steps)):
            self._save_version()
        if not before or _is_crossed(before, self._env_steps, self.config.swap_steps):
            self.opponent = self._draw()

    def record(self, role: str, opponent: str, reward: float) -> None:
        rating, other = self.get_rating(role), self._find_rating(opponent, role)
        expected = 1 / (1 + 10 ** ((other - rating) / RATING_SCALE))
        self.ratings[role] = rating + (np.sign(reward) + 1) / 2 - expected

    def collect_metrics(self) -> dict[str, float]:
        """Return the rating of each agent."""
        return {f"self_play/elo{metric_suffix(role)}": self.get_rating(role) for role in self.training.by_role}

    @property
    def parts(self) -> dict[str, OpponentPool]:
        """Return this pool as a part of the run that checkpoints contain; nothing without opponents."""
        return {"opponents": self} if self.config.opponents else {}

    def state(self) -> dict[str, Any]:
        """Return the versions, the ratings and the generator as JSON values."""
        return {
            "opponent": self.opponent,
            "versions": self.versions,
            "ratings": self.ratings,
            "version_ratings": self._version_ratings,
            "env_steps": self._env_steps,
            "generator": self.rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, without versions whose weights are missing."""
        self.rng.bit_generator.state = state["generator"]
        self._env_steps, self.opponent, self.ratings = state["env_steps"], state["opponent"], dict(state["ratings"])
        self._version_ratings = {version: dict(ratings) for version, ratings in state["version_ratings"].items()}
        exists = {version: get_version_folder(self._folder.path, version).is_dir() for version in state["versions"]}
        self.versions = [version for version in state["versions"] if exists[version]]
        if not exists.get(self.opponent, True):
            self.opponent = LATEST

    def _draw(self) -> str:
        """Return the opponent of the episodes that start from now on."""
        if self.rng.random() < self.config.play_against_latest_model_ratio:
            return LATEST
        fixed = [name for name in self.config.opponents if name != PAST]
        return str(self.rng.choice([*self.versions, *fixed]))

    def _save_version(self) -> None:
        version = f"{VERSION}{self._env_steps}"
        folder = get_version_folder(self._folder.path, version)
        if folder.exists():  # of a process that ended before its next checkpoint
            shutil.rmtree(folder)
        manifest = Manifest(folder)
        for role, components in self.training.by_role.items():
            write_weights(manifest, role, components.learner)
        manifest.write()
        self._version_ratings[version] = {role: self.get_rating(role) for role in self.training.by_role}
        self.versions = [*self.versions, version][-self.config.window :]

    def _find_rating(self, opponent: str, role: str) -> float:
        """Return the rating of an opponent of a role: the mean over its other roles, if it has any."""
        initial = self.config.initial_elo
        if opponent == LATEST:
            ratings = {name: self.get_rating(name) for name in self.training.by_role}
        else:
            ratings = self._version_ratings.get(opponent, {})
        others = [rating for name, rating in ratings.items() if name != role] or [ratings.get(role, initial)]
        return sum(others) / len(others)


class EvaluationOpponents(Players):
    """The opponent of evaluation episodes, in which the teams learn in turn; past versions are drawn as in training."""

    def __init__(self, settings: Settings, folder: RunFolder, pool: OpponentPool):
        super().__init__(settings, folder)
        self._pool, self.opponent = pool, self.config.evaluation_opponent

    @property
    def training(self) -> TrainingComponents:
        return self._pool.training

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        if self.config.evaluation_opponent == PAST:
            self.opponent = str(self.rng.choice(self._pool.versions)) if self._pool.versions else LATEST

    def choose_team(self, teams: Sequence[str], game: int) -> str:
        return teams[game % len(teams)]


def add_opponents(environments: Environments, settings: Settings, folder: RunFolder) -> OpponentPool:
    """Let opponents play in the environments of a run, if its settings have any. Return those of training."""
    pool = OpponentPool(settings, folder)
    if settings.opponent.opponents:
        environments.opponents = pool, EvaluationOpponents(settings, folder, pool)
    return pool


def get_version_folder(run: Path, version: str) -> Path:
    """Return the folder with the weights of a past version in a run folder."""
    return run / FOLDER / version.removeprefix(VERSION)


def _is_crossed(before: int, after: int, every: int) -> bool:
    """Return whether a multiple of `every` is above `before`, but not above `after`."""
    return after // every > before // every
