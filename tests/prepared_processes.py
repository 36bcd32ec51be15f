"""Processes that start from a server process which has imported torch, so that the start of each takes milliseconds."""

import multiprocessing

multiprocessing.set_forkserver_preload(["algorithm.runs.worker", "algorithm.runtimes.cluster"])
PREPARED = multiprocessing.get_context("forkserver")
