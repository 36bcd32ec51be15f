"""Processes that start from a server process which has imported torch and the messages of ML-Agents, in milliseconds."""

import multiprocessing

multiprocessing.set_forkserver_preload(
    ["algorithm.runs.worker", "algorithm.runtimes.cluster", "algorithm.adapters.unity.communicator"]
)
PREPARED = multiprocessing.get_context("forkserver")
