"""The code in the folder of an environment."""

import inspect
import pickle
import sys

import pytest

from algorithm.errors import UserError
from algorithm.parts.user_code import import_file, load_environment

ENV = """import threading
LOCK = threading.Lock()
def make(size=3):
    with LOCK:
        return [0.0] * size
"""


def test_make_is_imported_from_its_file_again_where_it_is_unpickled(tmp_path, monkeypatch):
    (tmp_path / "env.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    stored = pickle.dumps(load_environment(tmp_path.relative_to(tmp_path), "env.py"))
    monkeypatch.chdir(tmp_path.parent)  # as an environment may do
    make = pickle.loads(stored)
    assert make(size=2) == [0.0, 0.0]
    assert inspect.unwrap(make).__code__.co_filename == str(tmp_path / "env.py")
    assert "size" in inspect.signature(make).parameters


def test_a_file_without_make_is_an_error_that_names_it(tmp_path):
    (tmp_path / "env.py").write_text("made = 1\n")
    with pytest.raises(UserError, match=r"env\.py: expected a function make\(\*\*env_args\) that returns"):
        load_environment(tmp_path, "env.py")


def test_a_dataclass_whose_annotations_are_text(tmp_path):
    (tmp_path / "env.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Settings:\n    size: int = 3\n"
    )
    module = import_file(tmp_path / "env.py")
    assert module.Settings(size=4).size == 4
    assert module.__name__ not in sys.modules  # since other processes could not import it by this name
