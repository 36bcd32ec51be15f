"""How long the replay takes to draw a batch: everything that is learned from, of rows from a few bytes to images.

The limit for 16 windows of 20 rows of Atari is 400 microseconds. Such a row is one frame: with stacks of four, three
more rows stand in front of each window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from measure import machine

from algorithm.experiment.process import prepare_process
from algorithm.replay import Replay
from algorithm.rollout import Rollout

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
        sample=np.zeros((*row, 1), np.float32),
        reward=np.zeros(row, np.float32),
        alive=np.ones(row, bool),
        behavior=np.zeros((*row, 4), np.float32),
        memory=np.zeros((LANES, 0), np.float32),
        version=np.zeros(LANES, np.int64),
        lane=np.arange(LANES),
        joined=~none,
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


def main() -> None:
    """Print a table, and whether the limit is kept."""
    prepare_process()  # as every run does
    print(machine())
    print("| observation | rows | windows | draw (us) | store 20 rows of 16 lanes (us) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    took = {}
    for case in CASES:
        took[case.name], store = measure(case)
        draw = f"{took[case.name]:.0f}"
        print(f"| {case.name} | {case.rows:,} | {case.length} x {case.batch} | {draw} | {store:.0f} |")
    print(f"{LIMITED} within {LIMIT} us: {'yes' if took[LIMITED] <= LIMIT else 'no'}")


if __name__ == "__main__":
    main()
