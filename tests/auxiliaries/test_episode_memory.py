import numpy as np
import pytest

from algorithm.auxiliaries.episodic import AVERAGED_ARRIVALS, EmbeddingMemory, VisitCounts
from algorithm.auxiliaries.settings import EpisodicSettings

EPSILON, NEIGHBORS = 1e-3, 3


class Algorithm1:
    """Algorithm 1 of Badia et al. 2020 for one lane, one row after the other, in float64."""

    def __init__(self, neighbors: int = NEIGHBORS, epsilon: float = EPSILON, capacity: int = 10**6):
        self.neighbors, self.epsilon, self.capacity = neighbors, epsilon, capacity
        self.memory: list[np.ndarray] = []
        self.mean, self.arrivals = 0.0, 0

    def add(self, row: np.ndarray) -> float:
        row = row.astype(np.float64)
        distances = sorted(float(((row - other) ** 2).sum()) for other in self.memory)[: self.neighbors]
        self.memory = [*self.memory, row][-self.capacity :]
        if not distances:
            return 1 / 0.001
        self.arrivals += 1
        rate = max(1 / self.arrivals, 1 / AVERAGED_ARRIVALS)
        self.mean += rate * (np.mean(distances) - self.mean)
        total = 0.0
        for distance in distances:
            normalized = distance / self.mean if self.mean else 0.0
            total += self.epsilon / (max(normalized - 0.008, 0) + self.epsilon)
        return 1 / (np.sqrt(total) + 0.001)


def make_memory(lanes: int = 1, size: int = 4, **changes) -> EmbeddingMemory:
    settings = {"neighbors": NEIGHBORS, "kernel_epsilon": EPSILON, "capacity": 10**6, **changes}
    return EmbeddingMemory(lanes, size, EpisodicSettings(memory="embeddings", **settings))


def make_rows(n: int, size: int = 4, seed: int = 0) -> np.ndarray:
    """Return rows of which about half are repeated."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, size)).astype(np.float32)[rng.integers(n, size=n)]


@pytest.mark.parametrize("capacity", [1, 2, 5, 20, 10**6])
@pytest.mark.parametrize("parts", [[150], [1, 63, 64, 2, 20], [1] * 150])
def test_embeddings_have_the_bonus_of_algorithm_1(capacity, parts):
    memory, loop, rows = make_memory(capacity=capacity), Algorithm1(capacity=capacity), make_rows(150)
    expected = [loop.add(row) for row in rows]
    found = [memory.add(0, part) for part in np.split(rows, np.cumsum(parts[:-1]))]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5)


def test_the_mean_distance_stays_when_an_episode_ends_and_moves_with_the_last_rows():
    memory, loop = make_memory(), Algorithm1()
    for seed in range(12):
        rows = make_rows(200, seed=seed) * (1 + seed)
        memory.clear(0)
        loop.memory = []
        np.testing.assert_allclose(memory.add(0, rows), [loop.add(row) for row in rows], rtol=1e-5)
    assert loop.arrivals > 2 * AVERAGED_ARRIVALS


def test_equal_embeddings_have_no_distance():
    bonus = make_memory().add(0, np.full((6, 4), 0.3, np.float32))
    np.testing.assert_allclose(bonus[1:], [1 / (np.sqrt(min(n, NEIGHBORS)) + 0.001) for n in range(1, 6)], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_has_the_bonus_nan_and_no_influence(bad):
    rows = make_rows(80)
    with_bad = np.insert(rows, 40, bad, axis=0)
    bonus = make_memory().add(0, with_bad)
    assert np.isnan(bonus[40])
    np.testing.assert_array_equal(np.delete(bonus, 40), make_memory().add(0, rows))


def test_visits_by_hand():
    keys = np.array([7, -3, 7, 7, 2**62, -3])
    np.testing.assert_allclose(make_counts(1).add(0, keys), [1, 1, 2**-0.5, 3**-0.5, 1, 2**-0.5], rtol=1e-6)
    assert VisitCounts(1, "first_visit").add(0, keys).tolist() == [1, 1, 0, 0, 1, 0]


def make_counts(lanes: int) -> VisitCounts:
    return VisitCounts(lanes, "inverse_sqrt")


def draw_rows(kind, n: int, seed: int) -> np.ndarray:
    return make_rows(n, seed=seed) if kind is make_memory else np.random.default_rng(seed).integers(-5, 5, n)


@pytest.mark.parametrize("make", [make_counts, make_memory])
def test_lanes_are_separate_can_be_added_and_restored(make):
    memory, alone = make(2), [make(1) for _ in range(4)]
    for turn in range(6):
        if turn == 2:
            memory.grow(4)
        if turn == 4:
            saved = memory.state()
            memory = make(4)
            memory.restore(saved)
            memory.add(1, draw_rows(make, 9, seed=0))  # which does not change the saved state
            memory.restore(saved)
        for lane in range(2 if turn < 2 else 4):
            if (turn + lane) % 3 == 0:
                memory.clear(lane)
                alone[lane].clear(0)
            rows = draw_rows(make, 9, seed=10 * turn + lane)
            np.testing.assert_array_equal(memory.add(lane, rows), alone[lane].add(0, rows))
    assert memory.state().keys() == make(1).state().keys()


@pytest.mark.parametrize("make", [make_counts, make_memory])
def test_the_state_of_empty_lanes_can_be_restored(make):
    memory = make(3)
    memory.restore(make(3).state())
    rows = draw_rows(make, 9, seed=0)
    np.testing.assert_array_equal(memory.add(2, rows), make(1).add(0, rows))
