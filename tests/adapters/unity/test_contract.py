"""The contract of all adapters, for scenes of the scripted player."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.adapters.contract import AdapterContract
from tests.adapters.unity.scenes import make_scenes


class UnityContract(AdapterContract):
    """The contract for a task of the scripted player in `copies` environments."""

    copies, agents = 1, None
    task: tuple[str, ...]

    @classmethod
    def setup_class(cls):
        cls.folder = Path(tempfile.mkdtemp())
        super().setup_class()

    @classmethod
    def teardown_class(cls):
        super().teardown_class()
        shutil.rmtree(cls.folder)

    def make(self):
        task, *flags = self.task
        return make_scenes(self.folder, task, "--seed", "3", *flags, copies=self.copies, agents=self.agents)


class TestStaggeredInTwoCopies(UnityContract):
    task, copies, agents = ("staggered",), 2, 3


class TestGrid(UnityContract):
    task = ("grid", "--size", "20", "--png")
