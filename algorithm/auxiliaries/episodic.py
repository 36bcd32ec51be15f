"""A bonus for observations that are new within the episode.

By counts: 1 / sqrt(N) for the N-th visit of an observation in the episode, as in RIDE (Raileanu and Rocktaeschel 2020,
arXiv 2002.12292, section 3), or 1 for its first visit. By embeddings: the episodic bonus of "Never Give Up" (Badia et
al. 2020, arXiv 2002.06038, Algorithm 1). Row t has the bonus for arriving at x_t+1; it is 0 where x_t+1 belongs to
another episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.curiosity import InverseModel
from algorithm.auxiliaries.settings import EpisodicSettings
from algorithm.networks import Torso
from algorithm.rollout import Rollout
from algorithm.specs import Role, select_observed

# Constants of "Never Give Up" (Badia et al. 2020, Algorithm 1).
CLUSTER_DISTANCE = 0.008  # xi: smaller normalized squared distances count as 0
PSEUDO_COUNT = 0.001  # c
AVERAGED_ARRIVALS = 1000  # of the moving average d_m^2
BLOCK_ROWS = 64  # whose distances are computed at once


class EpisodeMemory(ABC):
    """A memory of the observations of each lane's running episode, in the order of time."""

    def __init__(self, lanes: int):
        self._rows: list[Any] = [self._make_empty() for _ in range(lanes)]  # of each lane

    @abstractmethod
    def _make_empty(self) -> Any:
        """Return the memory of a lane without rows."""

    @abstractmethod
    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        """Add rows [n, ...] of one episode to a lane; return the bonus [n] of each row, given all rows before it."""

    def clear(self, lane: int) -> None:
        """Remove all rows of a lane."""
        self._rows[lane] = self._make_empty()

    def grow(self, lanes: int) -> None:
        """Add empty lanes, so that there are `lanes` lanes."""
        self._rows += [self._make_empty() for _ in range(lanes - len(self._rows))]

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the contents."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class VisitCounts(EpisodeMemory):
    """The numbers of visits N of each observation of an episode; rows are keys [n] of 64 bits.

    Args:
        lanes: Number of lanes.
        bonus: `inverse_sqrt`: 1 / sqrt(N), with this visit in N; `first_visit`: 1 for N = 1, otherwise 0.
    """

    def __init__(self, lanes: int, bonus: Literal["inverse_sqrt", "first_visit"]):
        super().__init__(lanes)
        self._bonus = bonus

    def _make_empty(self) -> dict[int, int]:
        return {}

    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        counts, numbers = self._rows[lane], []
        for key in rows.tolist():
            counts[key] = number = counts.get(key, 0) + 1
            numbers.append(number)
        visits = np.array(numbers, np.float32)
        return 1 / np.sqrt(visits) if self._bonus == "inverse_sqrt" else (visits == 1).astype(np.float32)

    def state(self) -> dict[str, Tensor]:
        items = [item for counts in self._rows for item in counts.items()]
        keys, visits = torch.tensor(items, dtype=torch.int64).view(-1, 2).T.contiguous()
        return {"lengths": torch.tensor([len(counts) for counts in self._rows]), "keys": keys, "visits": visits}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        lengths = state["lengths"].tolist()
        items = torch.stack((state["keys"], state["visits"]), -1).split(lengths)
        self._rows = [dict(lane_items.tolist()) for lane_items in items]


class EmbeddingMemory(EpisodeMemory):
    """The embeddings [n, E] of an episode, whose bonus is 1 / (sqrt(sum_i K_i) + c) over the nearest neighbors i.

    K_i = epsilon / (d_i^2 / d_m^2 + epsilon) is the similarity of two embeddings with distance d_i; d_m^2 is a moving
    average of d_i^2 over the neighbors of the lane's rows, in all its episodes (Badia et al. 2020, Algorithm 1; without
    its bound of the similarity, which only more than 63 neighbors can reach). The bonus of an embedding that is not
    finite is NaN, and it is the neighbor of no other.

    Args:
        lanes: Number of lanes.
        size: E.
        settings: The number of `neighbors`, epsilon as `kernel_epsilon`, and as `capacity` the number of rows of an
            episode, the last ones, that can be neighbors.
    """

    def __init__(self, lanes: int, size: int, settings: EpisodicSettings):
        self._size, self._settings = size, settings
        super().__init__(lanes)
        self._mean = np.zeros(lanes)  # d_m^2
        self._arrivals = np.zeros(lanes, np.int64)  # rows in the mean

    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        blocks = [self._add_block(lane, block) for block in torch.from_numpy(rows).split(BLOCK_ROWS)]
        return torch.cat(blocks).numpy()

    def _make_empty(self) -> Tensor:
        return torch.zeros(0, self._size)

    def grow(self, lanes: int) -> None:
        added = lanes - len(self._rows)
        super().grow(lanes)
        self._mean, self._arrivals = np.pad(self._mean, (0, added)), np.pad(self._arrivals, (0, added))

    def state(self) -> dict[str, Tensor]:
        return {
            "lengths": torch.tensor([len(rows) for rows in self._rows]),
            "embeddings": torch.cat(self._rows),
            "mean": torch.tensor(self._mean),
            "arrivals": torch.tensor(self._arrivals),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._rows = [rows.clone() for rows in state["embeddings"].split(state["lengths"].tolist())]
        self._mean, self._arrivals = state["mean"].numpy().copy(), state["arrivals"].numpy().copy()

    def _add_block(self, lane: int, block: Tensor) -> Tensor:
        n_old, n_new, settings = len(self._rows[lane]), len(block), self._settings
        rows = torch.cat((self._rows[lane], block))
        self._rows[lane] = rows[max(0, len(rows) - settings.capacity) :].clone()
        end = n_old + torch.arange(n_new).unsqueeze(1)  # of the rows before each new one
        place = torch.arange(len(rows))
        is_finite = rows.isfinite().all(-1)
        is_neighbor = (place < end) & (place >= end - settings.capacity) & is_finite & is_finite[n_old:].unsqueeze(1)
        # Not by a product of matrices, whose rounding makes the distance of equal embeddings larger than 0.
        distance = torch.cdist(block, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        distance = distance.where(is_neighbor, torch.inf)
        nearest = distance.topk(min(settings.neighbors, len(rows)), largest=False).values.double()
        normalized = nearest / self._average(lane, nearest).unsqueeze(1)
        normalized = (normalized - CLUSTER_DISTANCE).clamp(min=0)
        similarity = (settings.kernel_epsilon / (normalized + settings.kernel_epsilon)).sum(-1).sqrt() + PSEUDO_COUNT
        return (1 / similarity).where(is_finite[n_old:], torch.nan).float()

    def _average(self, lane: int, nearest: Tensor) -> Tensor:
        """Update the moving average with squared distances [n, k]; return it [n] after each row, above 0.

        A distance is infinite where a row has no further neighbor. A row without neighbors changes nothing.
        """
        is_neighbor = nearest.isfinite()
        means = nearest.where(is_neighbor, 0).sum(-1) / is_neighbor.sum(-1)
        mean, arrivals, averages = float(self._mean[lane]), int(self._arrivals[lane]), []
        for row_mean in means.tolist():
            if row_mean == row_mean:  # NaN: no neighbors
                arrivals += 1
                mean += (row_mean - mean) / min(arrivals, AVERAGED_ARRIVALS)
            averages.append(mean)
        self._mean[lane], self._arrivals[lane] = mean, arrivals
        return torch.tensor(averages, dtype=torch.float64).clamp(min=torch.finfo(torch.float64).tiny)


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

    def build(self, agent: Agent, role: Role) -> nn.Module | None:
        settings = self.settings
        self.memory: EpisodeMemory
        self.encoder: Torso | None = None
        if settings.memory == "counts":
            self.names = _find_observations(settings.observations, role)
            self.memory = VisitCounts(role.lanes, settings.bonus)
            return None
        torso = agent.policy.torso
        size = settings.embedding_size if settings.features == "own" else torso.size
        self.memory = EmbeddingMemory(role.lanes, size, settings)
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
    keys = b"".join(blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(keys, np.int64).reshape(shape)


def _round(observation: np.ndarray, cell_size: float | None) -> np.ndarray:
    if not np.issubdtype(observation.dtype, np.floating):
        return observation
    cells = observation if cell_size is None else np.rint(observation / cell_size)
    return cells + 0.0  # -0.0 becomes 0.0


def _find_observations(pattern: str, role: Role) -> list[str]:
    """Return the names of the observations that match a pattern. Raises ValueError if there are none."""
    names = list(select_observed(role.obs_specs))
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        raise ValueError(f"observations {pattern!r} is the name of no observation; they are {', '.join(names)}")
    return matching
