"""Processes that start in milliseconds, from a server process that has imported torch and ML-Agents."""

import multiprocessing

multiprocessing.set_forkserver_preload(
    ["algorithm.processes.workers", "algorithm.processes.cluster", "algorithm.adapters.unity.client"]
)
PREPARED = multiprocessing.get_context("forkserver")
