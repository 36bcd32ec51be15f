"""Recordings of random actions in the environments of tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.demonstration_recorder import DemonstrationRecorder
from algorithm.demonstrations import Demonstrations, write_recording
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from tests.adapters.contract import random_actions


def play_randomly(adapter: Adapter, episodes: int, seed: int = 0) -> dict[str, Demonstrations]:
    """Return at least this number of episodes of each role, with random actions."""
    recorder, rng = DemonstrationRecorder(adapter), np.random.default_rng(seed)
    steps = recorder.reset(seed)
    while any(len(each.episodes) < episodes for each in recorder.collect().values()) or not recorder.collect():
        steps = recorder.step(
            {
                role: random_actions(recorder.roles[role].action_spec, len(step.lane), rng)
                for role, step in steps.items()
            }
        )
    return recorder.collect()


def record_run(folder: RunFolder, path: Path, episodes: int = 20) -> None:
    """Write a recording of the environment of a run."""
    with closing(Environments(folder.load_settings(), folder).open(2)) as adapter:
        write_recording(path, play_randomly(adapter, episodes))
