"""CPU time in which the replay samples a batch, for observations from a few bytes to images.

For each sampler: the time to draw the starts of sequences, to update priorities, and to update the sampler after a
write. Uniform sampling is also measured with gaps in nearly all sequences, as a simulator that restarts often causes.

The limit for 16 sequences of 20 steps of Atari is 400 microseconds. A stored observation of Atari is a single frame:
with stacks of four frames, three more steps precede each sequence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from measure import describe_setup

from algorithm.config.loader import resolve
from algorithm.parts.torch_setup import configure_torch
from algorithm.replay import Replay, make_sampler
from algorithm.rollout import Rollout

MAX_TIME = 400  # microseconds
LIMITED_CASE = "84x84x1, three steps before"
LANES, CHUNK = 16, 20
DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Case:
    """A replay of `rows` observations [shape] of `dtype`, and batches of `batch_size` sequences of `length`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    rows: int
    length: int = 20
    batch_size: int = 16


CASES = (
    Case(name="CartPole", shape=(4,), dtype="float32", rows=50_000),
    Case(name="CartPole", shape=(4,), dtype="float32", rows=50_000, length=100, batch_size=32),
    Case(name="10x10x4", shape=(4, 10, 10), dtype="uint8", rows=50_000),
    Case(name="84x84x1", shape=(1, 84, 84), dtype="uint8", rows=20_000),
    Case(name=LIMITED_CASE, shape=(1, 84, 84), dtype="uint8", rows=20_000, length=23),
    Case(name="84x84x4", shape=(4, 84, 84), dtype="uint8", rows=20_000),
)


def make_rollout(case: Case, rng: np.random.Generator) -> Rollout:
    """Return a rollout with one column for every lane."""
    shape = (CHUNK, LANES)
    obs = rng.integers(0, 255, (CHUNK + 1, LANES, *case.shape)).astype(case.dtype)
    return Rollout(
        obs={"obs": obs},
        first=np.zeros((CHUNK + 1, LANES), bool),
        raw_action=np.zeros((*shape, 1), np.float32),
        reward=np.zeros(shape, np.float32),
        alive=np.ones(shape, bool),
        behavior=np.zeros((*shape, 4), np.float32),
        memory=np.zeros((LANES, 0), np.float32),
        version=np.zeros(LANES, np.int64),
        lane=np.arange(LANES),
        continues_previous=np.ones(LANES, bool),
        weight=np.ones(LANES, np.float32),
        index=np.zeros(LANES, np.int64),
    )


def measure(case: Case) -> tuple[float, float]:
    """Return the CPU microseconds of sampling a batch, and of storing a rollout."""
    rng = np.random.default_rng(0)
    replay = Replay(capacity=case.rows, lanes=LANES, chunk=CHUNK, length=case.length, rng=rng)
    rollout, store_times, sample_times = make_rollout(case, rng), [], []
    for _ in range(case.rows // LANES // CHUNK):  # until every page of its memory is written
        replay.add(rollout)
    for _ in range(DRAWS // 10):
        begin = time.process_time()
        replay.add(rollout)
        store_times.append(time.process_time() - begin)
    for _ in range(DRAWS):
        begin = time.process_time()
        replay.sample(case.batch_size)
        sample_times.append(time.process_time() - begin)
    return 1e6 * float(np.median(sample_times)), 1e6 * float(np.median(store_times))


def measure_sampler(name: str, rows: int, batch_size: int) -> tuple[float, ...]:
    """Return the CPU microseconds of drawing starts, of updating their priorities, and of an update after a write."""
    case = Case(name="", shape=(1,), dtype="uint8", rows=rows)
    config = resolve([("benchmark", {"replay_config": {"sampler": name}})]).replay
    rng = np.random.default_rng(0)
    replay = Replay(capacity=rows, lanes=LANES, chunk=CHUNK, length=case.length, rng=rng, sampler=make_sampler(config))
    rollout, sampler = make_rollout(case, rng), replay.sampler
    for _ in range(rows // LANES // CHUNK + 2):  # until the oldest rows are overwritten
        replay.add(rollout)
    draw_times: list[float] = []
    priority_times: list[float] = []
    write_times: list[float] = []
    for draw in range(DRAWS):
        times = [time.process_time()]
        drawn = sampler.sample(rng, batch_size)
        times.append(time.process_time())
        index, errors = (
            replay.ring.make_index(drawn.lane, replay.sequences.first_row(drawn.number)),
            rng.random((2, batch_size)),
        )
        times.append(time.process_time())
        sampler.prioritize(index, lambda: errors)  # noqa: B023
        times.append(time.process_time())
        if draw % 8 == 0:
            replay.ring.write(rollout)
            times.append(time.process_time())
            sampler.update_after_write()
            write_times.append(time.process_time() - times[-1])
        draw_times.append(times[1] - times[0])
        priority_times.append(times[3] - times[2])
    return tuple(1e6 * float(np.median(times)) for times in (draw_times, priority_times, write_times))


def measure_with_gaps(rows: int, batch_size: int) -> tuple[float, float]:
    """Return the CPU microseconds of the first and of later uniform draws, with 99 of 100 columns after a gap."""
    case = Case(name="", shape=(1,), dtype="uint8", rows=rows)
    rng = np.random.default_rng(0)
    replay = Replay(capacity=rows, lanes=LANES, chunk=CHUNK, length=case.length, rng=rng)
    rollout, draw_times = make_rollout(case, rng), []
    for _ in range(rows // LANES // CHUNK + 2):
        replay.add(replace(rollout, continues_previous=rng.random(LANES) < 0.01))
    for draw in range(DRAWS // 4):
        if draw % 8 == 1:
            replay.add(replace(rollout, continues_previous=rng.random(LANES) < 0.01))
        begin = time.process_time()
        replay.sampler.sample(rng, batch_size)
        draw_times.append(1e6 * (time.process_time() - begin))
    return draw_times[0], float(np.median(draw_times[1:]))


def main() -> None:
    """Print the times of the replay, whether they are within the limit, and the times of the samplers."""
    configure_torch()  # as every run does
    print(describe_setup())
    print("| observation | steps stored | sequences | sample a batch (us) | store 20 steps of 16 agents (us) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    sample_times = {}
    for case in CASES:
        sample_times[case.name], store = measure(case)
        sample = f"{sample_times[case.name]:.0f}"
        print(f"| {case.name} | {case.rows:,} | {case.length} x {case.batch_size} | {sample} | {store:.0f} |")
    print(f"{LIMITED_CASE}: at most {MAX_TIME} us: {'yes' if sample_times[LIMITED_CASE] <= MAX_TIME else 'no'}")
    print("| sampler | steps stored | batch size | draw starts (us) | update priorities (us) | after a write (us) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in ("uniform", "prioritized", "lazy"):
        for rows, batch_size in ((50_000, 16), (50_000, 256), (1_000_000, 256)):
            figures = " | ".join(f"{microseconds:.0f}" for microseconds in measure_sampler(name, rows, batch_size))
            print(f"| {name} | {rows:,} | {batch_size} | {figures} |")
    print("| uniform, 99 of 100 columns after a gap: steps stored | batch size | first draw (us) | later draws (us) |")
    print("| ---: | ---: | ---: | ---: |")
    for rows in (50_000, 500_000, 5_000_000):
        first, later = measure_with_gaps(rows, 16)
        print(f"| {rows:,} | 16 | {first:.0f} | {later:.0f} |")


if __name__ == "__main__":
    main()
