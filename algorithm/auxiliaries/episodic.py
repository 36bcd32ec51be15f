"""A bonus for observations that are new within the episode.

By counts: 1 / sqrt(N) for the N-th visit of an observation in the episode, as in RIDE (Raileanu and Rocktaeschel 2020,
arXiv 2002.12292, section 3), or 1 for its first visit. By embeddings: the episodic bonus of "Never Give Up" (Badia et
al. 2020, arXiv 2002.06038, Algorithm 1). Row t has the bonus for arriving at x_t+1; it is 0 where x_t+1 belongs to
another episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2b

import numpy as np
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.action_prediction import InverseModel
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, make_stream, masked_mean
from algorithm.auxiliaries.episode_memory import EmbeddingMemory, EpisodeMemory, VisitCounts
from algorithm.auxiliaries.settings import EpisodicSettings
from algorithm.networks import Torso
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, Role

KEY_BYTES = 8


class Episodic(Auxiliary):
    """A bonus for arriving at an observation that is new within the episode, by counts or by embeddings.

    A replayed sequence does not contain the rows of the episode before it. So the bonus is computed once, when a
    rollout is collected, and stored with it. The memory of a lane contains the observations of its running episode up
    to the one after its last rollout, which is also the first observation of its next rollout.

    With `memory: counts`, there is no trained module. Embeddings are the agent's features, or, with `features: own`,
    those of an encoder. An inverse model trains it, so that they contain what the actions of the agent change.
    """

    Settings, has_record = EpisodicSettings, True
    settings: EpisodicSettings

    def __init__(self, settings: EpisodicSettings):
        super().__init__(settings)
        self.reward_weight = settings.strength
        self.stream = make_stream(settings)

    def build(self, agent: Agent, role: Role) -> nn.Module | None:
        settings = self.settings
        self.memory: EpisodeMemory
        self.encoder: Torso | None = None
        if settings.memory == "counts":
            self.names = _find_observations(settings.observations, role)
            self.memory = VisitCounts(role.lanes, settings.bonus)
            return None
        torso = agent.policy.torso
        self.memory = EmbeddingMemory(
            role.lanes,
            settings.embedding_size if settings.features == "own" else torso.size,
            neighbors=settings.neighbors,
            kernel_epsilon=settings.kernel_epsilon,
            capacity=settings.capacity,
        )
        if settings.features == "agent":
            return None
        self.family, self.encoder = agent.family, torso.make_encoder()
        self.embedding = nn.Linear(self.encoder.size, settings.embedding_size)
        self.inverse_model = InverseModel(settings.embedding_size, settings.units, role.action_spec)
        return nn.ModuleList([self.encoder, self.embedding, self.inverse_model])

    def record(self, rollout: Rollout, make_inputs: Callable[[], AuxiliaryInputs]) -> np.ndarray:
        if self.settings.memory == "counts":
            rows = compute_keys([rollout.obs[name] for name in self.names], self.settings.cell_size)
        else:
            rows = self._embed(make_inputs()).float().cpu().numpy()
        bonus = np.zeros(rollout.first.shape, np.float32)  # of arriving at each observation
        for column, lane in enumerate(rollout.lane.tolist()):  # the columns of one lane are in the order of time
            begin = int(rollout.continues_previous[column])  # the memory has the first observation of such a column
            if not begin:
                self.memory.clear(lane)
            starts = np.flatnonzero(rollout.first[begin:, column])
            for number, episode in enumerate(np.split(np.arange(begin, len(bonus)), starts)):
                if number:
                    self.memory.clear(lane)
                if len(episode):
                    bonus[episode, column] = self.memory.add(lane, rows[episode, column])
        return np.where(rollout.same_episode, bonus[1:], np.float32(0))

    def reward(self, inputs: AuxiliaryInputs) -> Tensor:
        return inputs.rollout.records[self.name]

    def loss(self, inputs: AuxiliaryInputs) -> tuple[Tensor, dict[str, Tensor]]:
        rollout = inputs.rollout
        error = self.inverse_model.compute_error(self._embed(inputs), self.family.encode(rollout.raw_action))
        loss = masked_mean(error, rollout.same_episode)
        return loss, {"inverse_error": loss}

    def grow(self, lanes: int) -> None:
        self.memory.grow(lanes)

    def state(self) -> dict[str, Tensor]:
        return self.memory.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if state.keys() != self.memory.state().keys():
            raise ValueError(
                f"there are no saved episodes of auxiliaries.{self.name} with memory {self.settings.memory}: "
                "train a new run instead"
            )
        self.memory.restore(state)

    def _embed(self, inputs: AuxiliaryInputs) -> Tensor:
        """Return the embeddings [T+1, B, E]."""
        return self.embedding(inputs.unroll_trained(self.encoder)) if self.encoder else inputs.features


def compute_keys(observations: list[np.ndarray], cell_size: float | None) -> np.ndarray:
    """Return a key of each row [T, B] of observations [T, B, ...], which is equal for equal rows only.

    The keys are hashes of 64 bits: two rows that differ have the same key with probability 2^-64.

    Args:
        observations: At least one observation.
        cell_size: Floats that are rounded to the same multiple of it are equal; None: only the same numbers are equal.
    """
    shape = observations[0].shape[:2]
    parts = [_round(observation, cell_size).reshape(shape[0] * shape[1], -1) for observation in observations]
    rows = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], -1)
    keys = b"".join(blake2b(row, digest_size=KEY_BYTES).digest() for row in rows)
    return np.frombuffer(keys, np.int64).reshape(shape)


def _round(observation: np.ndarray, cell_size: float | None) -> np.ndarray:
    if not np.issubdtype(observation.dtype, np.floating):
        return observation
    cells = observation if cell_size is None else np.rint(observation / cell_size)
    return cells + 0.0  # -0.0 becomes 0.0


def _find_observations(pattern: str, role: Role) -> list[str]:
    """Return the names of the observations that match a pattern. Raises ValueError if there are none."""
    names = [name for name in role.obs_specs if name != ACTION_MASK]
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        raise ValueError(f"observations {pattern!r} is the name of no observation; they are {', '.join(names)}")
    return matching
