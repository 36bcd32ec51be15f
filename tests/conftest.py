"""Limit libraries to one thread, check array shapes in the tests of mathematics, and provide fixtures."""

import gc
import os
import random

gc.disable()  # while modules are imported and tests collected, whose many objects would be searched again and again
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# The type checker draws the elements that it checks. It has a separate generator, since checkpoints contain the state
# of Python's generator; the program itself does not call this function.
random.getrandbits = random.Random(0).getrandbits

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook(["algorithm.returns", "algorithm.losses", "algorithm.distributions"], "beartype.beartype")

import hypothesis  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
hypothesis.settings.register_profile("without deadlines", deadline=None)  # tests measure no time
hypothesis.settings.load_profile("without deadlines")
# Tests of these packages check array shapes, which takes up to a fifth of the time of a test that trains.
CHECKED_PACKAGES = ("returns", "losses", "distributions", "agents", "training", "auxiliaries")


def pytest_collection_finish():
    """Search only the objects of tests for garbage, from now on."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _shape_checks(request):
    """Check array shapes only in the tests of the mathematical packages and of what calls them directly."""
    package = request.path.relative_to(request.config.rootpath / "tests").parts[0]
    jaxtyping.config.update("jaxtyping_disable", package not in CHECKED_PACKAGES)


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    """Write files without waiting for the disk: no test ends the power of its machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    """Change to a temporary working directory, since runs are written below the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capsys):
    """Return a caller of command lines in this process."""
    from tests.command_line import CommandLine  # after the import hook is installed

    return CommandLine(capsys)


@pytest.fixture
def registered_fakes(monkeypatch):
    """Register the fakes of tests/fakes.py, so that settings can select them by name."""
    from algorithm.config import registry  # after the import hook is installed

    for table, name, fake in [
        (registry.ADAPTERS, "TWO_ROLES", "TwoRoles"),
        (registry.ADAPTERS, "SKIPPING", "Skipping"),
        (registry.ADAPTERS, "GROWING", "Growing"),
        (registry.ADAPTERS, "ANY_ACTION", "AnyAction"),
        (registry.AGENTS, "TWO_GROUPS", "TwoGroups"),
        (registry.AUXILIARIES, "distillation", "Distillation"),
        (registry.TABLES["explorer"], "mixture", "Mixture"),
    ]:
        monkeypatch.setitem(table, name, f"tests.fakes:{fake}")


@pytest.fixture
def prepared_workers(monkeypatch):
    """Start the processes of workers and members in milliseconds; the tests of faults start them as users do."""
    from algorithm.processes import host
    from tests.prepared_processes import PREPARED

    monkeypatch.setattr(host, "PROCESSES", PREPARED)


@pytest.fixture
def prepared_scenes(monkeypatch):
    """Start the processes of scenes in milliseconds; the contract tests of the adapter start them as users do."""
    from algorithm.adapters.scenes import adapter
    from tests.prepared_processes import PREPARED

    monkeypatch.setattr(adapter, "PROCESSES", PREPARED)
