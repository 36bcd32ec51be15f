"""One thread, and shapes checked in the mathematics."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook(["algorithm.returns", "algorithm.losses", "algorithm.distributions"], "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    """Runs go under the working directory, so every test has one of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def registered_fakes(monkeypatch):
    """The fakes behind every contract stand in the registry, under names that settings can give."""
    from algorithm.config import registry  # not before the import hook is installed

    for table, name, row in [
        (registry.ADAPTERS, "TWO_ROLES", "TwoRoles"),
        (registry.ADAPTERS, "SKIPPING", "Skipping"),
        (registry.ADAPTERS, "GROWING", "Growing"),
        (registry.ADAPTERS, "ANY_ACTION", "AnyAction"),
        (registry.AGENTS, "TWO_GROUPS", "TwoGroups"),
        (registry.AUXILIARIES, "distillation", "Distillation"),
        (registry.EXPLORERS, "mixture", "Mixture"),
    ]:
        monkeypatch.setitem(table, name, f"tests.fakes:{row}")
