"""How often the intervals of a comparison contain the true value: simulations with normal and with skewed returns."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from algorithm.tools.reports.statistics import Scores, compute_iqm, compute_mean, estimate

RUNS = (20, 10, 5, 3)
STATISTICS = {"mean": compute_mean, "IQM": compute_iqm}
DISTRIBUTIONS = {"normal": np.random.Generator.normal, "exponential": np.random.Generator.exponential}
MANY = 4_000_000  # runs that determine the true value


def main() -> None:
    """Print a table: distribution and statistic, and the coverage for each number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=2000, help="simulations of each case")
    simulations = parser.parse_args().simulations
    print(f"| returns | statistic | {' | '.join(f'{runs} runs' for runs in RUNS)} |")
    print(f"| --- | --- | {' | '.join('---:' for _ in RUNS)} |")
    for distribution, draw in DISTRIBUTIONS.items():
        for name, statistic in STATISTICS.items():
            true = statistic([draw(np.random.default_rng(0), size=MANY)])
            covered = [measure_coverage(statistic, draw, runs, true, simulations) for runs in RUNS]
            print(f"| {distribution} | {name} | {' | '.join(f'{each:.3f}' for each in covered)} |", flush=True)


def measure_coverage(
    statistic: Callable[[Scores], np.ndarray], draw: Callable, runs: int, true: np.ndarray, simulations: int
) -> float:
    """Return the fraction of simulations whose interval contains the true value."""
    sample = partial(draw, size=runs)
    intervals = [estimate(statistic, [sample(np.random.default_rng([runs, seed]))]) for seed in range(simulations)]
    return float(np.mean([interval.low <= true <= interval.high for interval in intervals]))


if __name__ == "__main__":
    main()
