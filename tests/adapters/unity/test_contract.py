"""The contract of all adapters, for scenes of the scripted player."""

import tempfile
from pathlib import Path

from tests.adapters.contract import make_contract
from tests.adapters.unity.played import make_scenes

TEMPORARY = tempfile.TemporaryDirectory()  # removed at the end of the process
FOLDER = Path(TEMPORARY.name)

TestStaggeredInTwoEnvironments = make_contract(
    lambda: make_scenes(FOLDER, "staggered", "--seed", "3", copies=2, agents=3)
)
TestGrid = make_contract(lambda: make_scenes(FOLDER, "grid", "--seed", "3", "--size", "20", "--png"))
