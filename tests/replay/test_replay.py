from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from algorithm.replay import IN_MEMORY, Replay, ReplaySize, UniformSampler, compute_replay_size, make_file_allocator
from algorithm.replay.ring import WIDE_ROW_BYTES
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import random_rollout
from tests.doubles import EncodedLanes, assert_intact, find_starts
from tests.replay.samplers import each_shape, replay_of


def write(replay: Replay, lanes: EncodedLanes, rng: np.random.Generator, rollouts: int, loss: float = 0.0) -> None:
    """Write rollouts with as many columns as lanes, from random lanes."""
    count = len(lanes.written)
    for _ in range(rollouts):
        chosen = rng.integers(count, size=count).tolist()
        replay.add(lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < loss]))


def drawn(replay: Replay, batches: int, batch: int = 64) -> Counter:
    return Counter(start for _ in range(batches) for start in find_starts(replay.sample(batch)))


@pytest.mark.parametrize("wide_row_bytes", [WIDE_ROW_BYTES, 1], ids=["rows are narrow", "rows are wide"])
@pytest.mark.parametrize("loss", [0.0, 0.3])
@each_shape
def test_every_complete_sequence_is_drawn_after_any_writes_and_no_other(shape, loss, wide_row_bytes, monkeypatch):
    monkeypatch.setattr("algorithm.replay.ring.WIDE_ROW_BYTES", wide_row_bytes)
    replay, lanes, rng = replay_of(**shape), EncodedLanes(3, shape["chunk"]), np.random.default_rng(1)
    sequences, n_batches = replay.sequences, 0
    for _ in range(25):
        write(replay, lanes, rng, 1, loss)
        legal = lanes.list_starts(replay.ring.rows, sequences.length, sequences.stride, sequences.warmup_rows)
        batch = replay.sample(32)
        assert (batch is None) == (not legal)
        if batch:
            assert len(batch) == shape["length"] + shape.get("burn_in", 0)
            assert set(find_starts(batch)) <= legal
            assert_intact(batch)
            n_batches += 1
    assert n_batches > 5
    while not replay.sample(1):
        write(replay, lanes, rng, 1)
    legal = lanes.list_starts(replay.ring.rows, sequences.length, sequences.stride, sequences.warmup_rows)
    assert set(drawn(replay, batches=25)) == legal


@pytest.mark.parametrize("stored_state_size", [0, 2])
@pytest.mark.parametrize(
    ("rollouts", "loss"), [(5, 0.0), (40, 0.0), (40, 0.6), (40, 0.9)], ids=["uneven lanes", "full", "breaks", "many"]
)
def test_sequences_are_drawn_uniformly(rollouts, loss, stored_state_size):
    replay, lanes = replay_of(capacity=180, length=5, stored_state_size=stored_state_size), EncodedLanes(3, 5)
    write(replay, lanes, np.random.default_rng(3), rollouts, loss)
    legal = lanes.list_starts(replay.ring.rows, 5, 5 if stored_state_size else 1)
    counts = drawn(replay, batches=200, batch=100)
    assert set(counts) == legal
    expected = 20_000 / len(legal)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    freedom = len(legal) - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def mostly_broken(rows: int, unbroken: int = 0) -> tuple[Replay, EncodedLanes]:
    """Return a full replay of two lanes with a break before each column except column `unbroken` of every ten."""
    replay, lanes = replay_of(capacity=rows, lanes=2, length=8, seed=unbroken), EncodedLanes(2, 5)
    for column in range(rows // 10 + 3):
        replay.add(lanes.rollout(0, 1, lost=[] if column % 10 == unbroken else [0, 1]))
    return replay, lanes


def test_a_restored_replay_finds_its_complete_sequences_in_the_ring():
    replay, lanes = mostly_broken(2000)
    assert_intact(replay.sample(16))
    other, _ = mostly_broken(2000, unbroken=5)
    other.sample(16)
    for _ in range(40):
        replay.add(lanes.rollout(0, 0, lost=[0]))
    other.restore(replay.state())
    other.rng.bit_generator.state = replay.rng.bit_generator.state
    for _ in range(5):
        ours, theirs = replay.sample(32), other.sample(32)
        assert find_starts(ours) == find_starts(theirs)
        assert_intact(theirs)
        for each in (replay, other):
            each.add(EncodedLanes(2, 5).rollout(0, 1))


@pytest.mark.parametrize("broken", [False, True])
def test_weights_of_uniform_draws_are_one(broken):
    """With a break before nearly every column, draws are from the runs of complete sequences."""
    replay = mostly_broken(2000)[0] if broken else replay_of(capacity=2000, lanes=2, length=8)
    replay.add(EncodedLanes(2, 5).rollout(0, 1, 0, 1, 0, 1))
    for _ in range(20):
        weight = replay.sample(16).weight
        assert weight.dtype == np.float32 and (weight == 1).all()


def test_sequences_of_one_batch_are_drawn_independently():
    replay, lanes = replay_of(capacity=90), EncodedLanes(3, 5)
    write(replay, lanes, np.random.default_rng(4), 20)
    legal = len(lanes.list_starts(replay.ring.rows, 4))
    pairs = [find_starts(replay.sample(2)) for _ in range(4000)]
    same = sum(first == second for first, second in pairs)
    assert abs(same - 4000 / legal) < 4 * np.sqrt(4000 / legal)


@pytest.mark.parametrize(("warmup_rows", "chunk"), [(0, 5), (3, 5), (6, 5), (0, 1)])
def test_sequences_start_warmup_rows_before_the_rows_whose_memory_and_version_are_stored(warmup_rows, chunk):
    burn_in = {"burn_in": warmup_rows, "warmup_rows": warmup_rows}
    replay = replay_of(capacity=90, length=7, chunk=chunk, stored_state_size=2, **burn_in)
    lanes = EncodedLanes(3, chunk)
    write(replay, lanes, np.random.default_rng(5), 30, loss=0.1)
    batch = replay.sample(200)
    assert batch.weight.dtype == np.float32 and (batch.weight == 1).all()
    known = np.array(find_starts(batch)) + [0, warmup_rows]
    np.testing.assert_array_equal(batch.memory, known)
    np.testing.assert_array_equal(batch.version, 10 * known[:, 1])
    assert batch.version.dtype == np.int64


@pytest.mark.parametrize("stored_state_size", [0, 1])
def test_only_the_first_values_of_a_memory_are_stored(stored_state_size):
    replay, lanes = replay_of(capacity=90, length=5, stored_state_size=stored_state_size), EncodedLanes(3, 5)
    write(replay, lanes, np.random.default_rng(5), 5)
    batch = replay.sample(20)
    assert batch.memory.shape == (20, stored_state_size)
    np.testing.assert_array_equal(batch.memory, np.array(find_starts(batch))[:, :stored_state_size])


def test_rows_counts_the_readable_rows_of_all_lanes():
    replay, lanes = replay_of(capacity=60, lanes=3, chunk=5), EncodedLanes(3, 5)
    assert replay.rows == 0
    replay.add(lanes.rollout(0, 0, 2))
    assert replay.rows == 15
    for _ in range(9):
        replay.add(lanes.rollout(0, 0, 2))
    assert replay.rows == 38  # one of the twenty rows of a full lane is reserved for the last successor
    assert replay.fill == 38 / 57


def test_the_age_of_a_sequence_is_that_of_its_first_learned_row_over_all_lanes():
    replay, lanes = replay_of(length=2, burn_in=2), EncodedLanes(3, 5)
    for _ in range(3):
        replay.add(lanes.rollout(0, 1, 2))
    index = np.append(replay.ring.make_index(np.array([0, 2]), np.array([6, 11])), -1)  # rows 8 and 13 of 15
    assert replay.compute_ages(index).tolist() == [7 * 3, 2 * 3]


def test_stored_values_do_not_change_by_other_writes_and_draws():
    replay, lanes = replay_of(capacity=60), EncodedLanes(3, 5)
    for _ in range(12):  # the ring is written three times
        replay.add(replace(lanes.rollout(0, 1, 2), reward=np.full((5, 3), -0.7, np.float32)))
    stored = {name: value.copy() for name, value in replay.state().items()}
    for _ in range(100):
        batch = replay.sample(16)
        assert batch.reward.dtype == np.float32
        assert (batch.reward == np.float32(-0.7)).all()
        assert_intact(replace(batch, reward=np.float32(-0.25) - batch.raw_action[..., 0]))
        batch.reward += 1
        batch.behavior *= 2
        batch.obs["image"] += 1
    for name, value in replay.state().items():
        np.testing.assert_array_equal(value, stored[name])


def test_a_written_rollout_may_be_changed_afterwards():
    replay, lanes = replay_of(length=5), EncodedLanes(3, 5)
    rollout = lanes.rollout(0, 1, 2)
    replay.add(rollout)
    rollout.reward[:] = 0
    rollout.obs["vector"][:] = 0
    assert_intact(replay.sample(8))


def test_the_same_seed_draws_the_same_sequences():
    replays = [replay_of(seed=7), replay_of(seed=7), replay_of(seed=8)]
    for replay in replays:
        write(replay, EncodedLanes(3, 5), np.random.default_rng(6), 20, loss=0.3)
    same, again, other = ([find_starts(replay.sample(16)) for _ in range(5)] for replay in replays)
    assert same == again
    assert same != other


def test_restoring_copies_the_arrays():
    replay, lanes = replay_of(), EncodedLanes(3, 5)
    replay.add(lanes.rollout(0, 1, 2))
    state = {name: value.copy() for name, value in replay.state().items()}
    before = {name: value.copy() for name, value in state.items()}
    other = replay_of()
    other.restore(state)
    other.add(lanes.rollout(0, 1, 2))
    for name, value in state.items():
        np.testing.assert_array_equal(value, before[name])


def test_an_empty_replay_can_be_saved_and_restored(tmp_path):
    np.savez(tmp_path / "replay.npz", **replay_of().state())
    other, lanes = replay_of(), EncodedLanes(3, 5)
    with np.load(tmp_path / "replay.npz", allow_pickle=False) as arrays:
        other.restore(dict(arrays))
    assert other.rows == 0
    other.add(lanes.rollout(0, 1, 2))
    assert_intact(other.sample(4))


def test_the_state_of_another_size_is_rejected_without_changes():
    small, large, lanes = replay_of(capacity=30), replay_of(capacity=60), EncodedLanes(3, 5)
    large.add(lanes.rollout(0, 1, 2))
    with pytest.raises(ValueError, match=r"\(3, 10, .*\(3, 20, "):
        large.restore(small.state())
    assert_intact(large.sample(4))


def test_the_state_of_other_columns_is_rejected():
    with pytest.raises(ValueError, match="rows per column"):
        replay_of(capacity=60, chunk=10).restore(replay_of(capacity=60, chunk=5).state())


@pytest.mark.parametrize(
    ("lanes", "chunk", "length", "burn_in", "warmup_rows", "stored_state_size"),
    [
        (1, 1, 1, 0, 0, 0),
        (4, 20, 20, 0, 0, 0),
        (3, 8, 5, 6, 0, 0),
        (2, 10, 3, 0, 0, 0),
        (2, 4, 9, 2, 0, 2),
        (2, 4, 9, 3, 3, 0),
        (2, 4, 9, 3, 3, 2),
        (2, 4, 8, 3, 3, 2),
        (1, 4, 6, 7, 5, 2),
    ],
)
def test_the_capacity_in_the_error_is_the_smallest_valid_one(
    lanes, chunk, length, burn_in, warmup_rows, stored_state_size
):
    def with_capacity(capacity):
        memory = {"burn_in": burn_in, "warmup_rows": warmup_rows, "stored_state_size": stored_state_size}
        return replay_of(UniformSampler, capacity, lanes, chunk, length, **memory)

    with pytest.raises(ValueError, match="capacity") as error:
        with_capacity(lanes)
    needed = int(str(error.value).split("at least ")[1].split()[0])
    with pytest.raises(ValueError, match=f"{needed - 1} rows over {lanes} lanes .* {length + burn_in} rows"):
        with_capacity(needed - 1)
    replay, encoded = with_capacity(needed), EncodedLanes(lanes, chunk)
    for _ in range(7):
        for _ in range(-(-(length + burn_in - warmup_rows) // chunk) - (-warmup_rows // chunk)):
            replay.add(encoded.rollout(*range(lanes)))
        assert_intact(replay.sample(8))


@pytest.mark.parametrize("lanes", [[0, 1, 2], [2, 0, 2, 2]])
def test_files_store_the_same_as_memory(tmp_path, lanes):
    allocators = IN_MEMORY, make_file_allocator(tmp_path), make_file_allocator(tmp_path)
    *replays, resumed = (replay_of(length=7, allocate=allocate) for allocate in allocators)
    for replay in replays:
        written = EncodedLanes(3, 5)
        for _ in range(9):
            replay.add(written.rollout(*lanes))
    resumed.restore(replays[1].state())
    ours, theirs, again = (replay.sample(16) for replay in (*replays, resumed))
    for name, value in ours.obs.items():
        np.testing.assert_array_equal(value, theirs.obs[name])
        np.testing.assert_array_equal(value, again.obs[name])
        assert type(theirs.obs[name]) is np.ndarray
    for replay in (replays[1], resumed):
        assert isinstance(replay.ring.arrays["obs/image"].base, np.memmap)
        replay.add(written.rollout(0, 1, 2))  # restored arrays are writable
    assert not isinstance(replays[0].ring.arrays["obs/image"].base, np.memmap)
    if os.name != "nt":
        assert not list(tmp_path.iterdir())  # deleted however the process ends


@pytest.mark.parametrize("memory", [0, 5])
def test_the_size_is_computed_before_anything_is_written(memory):
    eye = ObsSpec((4, 9, 9), "uint8", env_shape=(9, 9, 4), high=255)
    role = Role(3, {"eye": eye, "v": ObsSpec((5,))}, ActionSpec(branches=(6,)))
    replay = replay_of(capacity=200, chunk=8, length=10, stored_state_size=memory)
    rollout = random_rollout(np.random.default_rng(0), rows=8, columns=3, size=5, actions=6)
    obs = {"eye": np.zeros((9, 3, 4, 9, 9), np.uint8), "v": rollout.obs["obs"]}
    replay.add(replace(rollout, obs=obs, memory=np.zeros((3, memory), np.float32)))
    size = compute_replay_size(200, role, 8, memory, statistics_size=6)
    arrays = {name: value for name, value in replay.state().items() if name not in ("head", "chunk")}
    assert size == ReplaySize(replay.ring.rows * 3, sum(value.nbytes for value in arrays.values()))
    whole = compute_replay_size(200, role, 8, memory, 6, bytes_per_start=2.5)
    assert whole == ReplaySize(size.rows, size.bytes + round(2.5 * replay.sequences.slots * 3))


def test_lanes_added_to_an_empty_replay_share_the_capacity():
    replay = replay_of(capacity=60, lanes=1)
    replay.grow(2)
    replay.grow(3)
    assert (replay.ring.rows, replay.ring.lanes, replay.initial_lanes) == (20, 3, 3)
    with pytest.raises(ValueError, match="60 rows over 30 lanes hold no sequence of 4 rows; at least 150 are needed"):
        replay.grow(30)
    assert (replay.ring.rows, replay.ring.lanes, replay.initial_lanes) == (20, 3, 3)


@pytest.mark.parametrize("allocate", ["memory", "files"])
def test_later_lanes_have_as_many_rows_and_the_others_do_not_change(allocate, tmp_path):
    replay = replay_of(allocate=IN_MEMORY if allocate == "memory" else make_file_allocator(tmp_path))
    lanes = EncodedLanes(5, 5)
    for _ in range(6):
        replay.add(lanes.rollout(0, 1, 2))
    before = {name: value.copy() for name, value in replay.ring.state().items()}
    index = replay.sample(64).index
    replay.grow(5)
    assert (replay.ring.rows, replay.ring.lanes, replay.initial_lanes) == (20, 5, 3)
    for name, value in replay.ring.state().items():
        np.testing.assert_array_equal(value[:3] if value.ndim else value, before[name])
        assert not value[3:].any() if value.ndim else True
        assert value.dtype == before[name].dtype
    for _ in range(9):
        replay.add(lanes.rollout(0, 3, 1, 4, 2))
        batch = replay.sample(64)
        assert_intact(batch)
        assert set(find_starts(batch)) <= lanes.list_starts(replay.ring.rows, 4)
    assert {lane for lane, _ in find_starts(batch)} == set(range(5))
    assert not set(index) & set(batch.index)  # those rows are overwritten, and indices are not reused
    size = compute_replay_size(60, Role(5, {}, ActionSpec()), 5, 0, 0, initial_lanes=3)
    assert size.rows == replay.ring.rows * replay.ring.lanes


def test_only_written_rows_take_memory():
    ring = replay_of(capacity=3 * 10**6).ring
    ring.write(EncodedLanes(3, 5).rollout(0, 1, 2))
    read = []

    class Watched(np.ndarray):
        def __getitem__(self, key):
            read.append(np.ndarray.__getitem__(self, key).size)
            return np.ndarray.__getitem__(self, key)

    ring.arrays = {name: array.view(Watched) for name, array in ring.arrays.items()}
    ring.grow(4)
    assert len(read) == len(ring.arrays)
    assert max(read) <= 3 * 6 * 3  # six rows of three lanes, of up to three numbers
