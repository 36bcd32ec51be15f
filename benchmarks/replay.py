"""The time in which the replay draws a batch, of rows from a few bytes to images.

Also the time of priorities: to draw starts, to update their errors, and to follow a write. Uniform sampling is also
measured with nearly all windows broken, as by a simulator that restarts all the time.

The limit for 16 windows of 20 rows of Atari is 400 microseconds. Such a row is one frame: with stacks of four, three
more rows stand in front of each window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from measure import machine

from algorithm.config.loader import resolve
from algorithm.replay import Replay, make_sampler
from algorithm.rollout import Rollout
from algorithm.runs.torch_setup import configure_torch

LIMIT = 400  # microseconds
LIMITED = "84x84x1, three rows in front"
LANES, CHUNK = 16, 20
DRAWS = 200


@dataclass(frozen=True)
class Case:
    """Observations [shape] of `dtype`, `rows` of them in all, `batch` windows of `length`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    rows: int
    length: int = 20
    batch: int = 16


CASES = (
    Case("CartPole", (4,), "float32", 50_000),
    Case("CartPole", (4,), "float32", 50_000, 100, 32),
    Case("10x10x4", (4, 10, 10), "uint8", 50_000),
    Case("84x84x1", (1, 84, 84), "uint8", 20_000),
    Case(LIMITED, (1, 84, 84), "uint8", 20_000, 23),
    Case("84x84x4", (4, 84, 84), "uint8", 20_000),
)


def rollout(case: Case, rng: np.random.Generator) -> Rollout:
    """One column for every lane."""
    row, none = (CHUNK, LANES), np.zeros(LANES, bool)
    obs = rng.integers(0, 255, (CHUNK + 1, LANES, *case.shape)).astype(case.dtype)
    return Rollout(
        obs={"obs": obs},
        first=np.zeros((CHUNK + 1, LANES), bool),
        raw_action=np.zeros((*row, 1), np.float32),
        reward=np.zeros(row, np.float32),
        alive=np.ones(row, bool),
        behavior=np.zeros((*row, 4), np.float32),
        memory=np.zeros((LANES, 0), np.float32),
        version=np.zeros(LANES, np.int64),
        lane=np.arange(LANES),
        continues_previous=~none,
        weight=np.ones(LANES, np.float32),
        index=np.zeros(LANES, np.int64),
    )


def measure(case: Case) -> tuple[float, float]:
    """CPU microseconds of a draw, and of storing a column of every lane."""
    rng = np.random.default_rng(0)
    replay = Replay(case.rows, LANES, CHUNK, case.length, rng)
    column, stored, drawn = rollout(case, rng), [], []
    for _ in range(case.rows // LANES // CHUNK):  # until every page of it has been written to
        replay.add(column)
    for _ in range(DRAWS // 10):
        begin = time.process_time()
        replay.add(column)
        stored.append(time.process_time() - begin)
    for _ in range(DRAWS):
        begin = time.process_time()
        replay.sample(case.batch)
        drawn.append(time.process_time() - begin)
    return 1e6 * float(np.median(drawn)), 1e6 * float(np.median(stored))


def measure_sampler(name: str, rows: int, batch: int) -> tuple[float, ...]:
    """CPU microseconds of a draw of starts alone, of its errors, and of following a column of every lane."""
    case = Case("", (1,), "uint8", rows)
    config = resolve([("benchmark", {"replay_config": {"sampler": name}})]).replay
    rng = np.random.default_rng(0)
    replay = Replay(rows, LANES, CHUNK, case.length, rng, sampler=make_sampler(config))
    column, sampler = rollout(case, rng), replay.sampler
    for _ in range(rows // LANES // CHUNK + 2):  # until the ring has turned
        replay.add(column)
    took: tuple[list[float], ...] = ([], [], [])
    for turn in range(DRAWS):
        times = [time.process_time()]
        drawn = sampler.sample(rng, batch)
        times.append(time.process_time())
        index, errors = (
            replay.ring.make_index(drawn.lane, replay.sequences.first_row(drawn.number)),
            rng.random((2, batch)),
        )
        times.append(time.process_time())
        sampler.prioritize(index, lambda: errors)  # noqa: B023
        times.append(time.process_time())
        if turn % 8 == 0:
            replay.ring.write(column)
            times.append(time.process_time())
            sampler.update_after_write()
            took[2].append(time.process_time() - times[-1])
        took[0].append(times[1] - times[0])
        took[1].append(times[3] - times[2])
    return tuple(1e6 * float(np.median(each)) for each in took)


def measure_broken(rows: int, batch: int) -> tuple[float, float]:
    """Return CPU microseconds of the first and of later uniform draws of starts, 1 column in 100 joined."""
    case = Case("", (1,), "uint8", rows)
    rng = np.random.default_rng(0)
    replay = Replay(rows, LANES, CHUNK, case.length, rng)
    column, drawn = rollout(case, rng), []
    for _ in range(rows // LANES // CHUNK + 2):
        replay.add(replace(column, continues_previous=rng.random(LANES) < 0.01))
    for turn in range(DRAWS // 4):
        if turn % 8 == 1:
            replay.add(replace(column, continues_previous=rng.random(LANES) < 0.01))
        begin = time.process_time()
        replay.sampler.sample(rng, batch)
        drawn.append(1e6 * (time.process_time() - begin))
    return drawn[0], float(np.median(drawn[1:]))


def main() -> None:
    """Print a table, and whether the limit is kept; then one of the samplers."""
    configure_torch()  # as every run does
    print(machine())
    print("| observation | rows | windows | draw (us) | store 20 rows of 16 lanes (us) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    took = {}
    for case in CASES:
        took[case.name], store = measure(case)
        draw = f"{took[case.name]:.0f}"
        print(f"| {case.name} | {case.rows:,} | {case.length} x {case.batch} | {draw} | {store:.0f} |")
    print(f"{LIMITED} within {LIMIT} us: {'yes' if took[LIMITED] <= LIMIT else 'no'}")
    print("| sampler | rows | batch | draw starts (us) | take in errors (us) | follow 20 rows of 16 lanes (us) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in ("uniform", "prioritized", "lazy"):
        for rows, batch in ((50_000, 16), (50_000, 256), (1_000_000, 256)):
            figures = " | ".join(f"{each:.0f}" for each in measure_sampler(name, rows, batch))
            print(f"| {name} | {rows:,} | {batch} | {figures} |")
    print("| uniform, one column in a hundred joined: rows | batch | first draw (us) | draw starts (us) |")
    print("| ---: | ---: | ---: | ---: |")
    for rows in (50_000, 500_000, 5_000_000):
        first, later = measure_broken(rows, 16)
        print(f"| {rows:,} | 16 | {first:.0f} | {later:.0f} |")


if __name__ == "__main__":
    main()
