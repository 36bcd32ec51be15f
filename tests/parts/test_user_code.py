"""The code in the folder of an environment, and networks of a program that are written as an nn.py."""

import inspect
import json
import pickle
import sys
from pathlib import Path

import pytest

from algorithm import networks
from algorithm.errors import UserError
from algorithm.parts.user_code import import_file, load_blueprint, load_environment, write_network_file

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


OBSERVATIONS = {
    "a": networks.FrameStack(3, networks.Vector(scale=(1.0, 0.5))),
    "b[0]": networks.Conv((16, 3, 1), (8, 3, 2), units=None, activation="tanh"),
    "c": networks.NatureCnn(64),
    "d": networks.ImpalaResNet((4, 8), spectral_norm=True),
    "e": networks.OneHot(3, 4),
    "*": networks.Vector(normalize=True, clip=3.0),
}
LAYERS = [
    networks.Mlp(8, 4, activation="tanh", norm="layer"),
    networks.NoisyMlp(4, std=0.1),
    networks.Residual(32, 2, unit_weights=True),
    networks.UnitSphere(0.3),
]


class Custom:
    """A factory of a module that can be imported."""

    def __init__(self, size: int):
        self.size = size


class Forgetful:
    """A factory that does not keep its argument."""

    def __init__(self, size: int):
        self.kept = size


def make_custom(size: int) -> None:
    """A factory that is a function."""


def describe(blueprint: networks.Blueprint) -> str:
    """Return a text that is equal for equal blueprints: the class and the attributes of each part."""

    def list_attributes(part: object) -> object:
        return part.__qualname__ if hasattr(part, "__qualname__") else [type(part).__qualname__, vars(part)]

    return json.dumps(blueprint, default=list_attributes)


@pytest.mark.parametrize(
    "blueprint",
    [
        networks.Blueprint(),
        networks.Blueprint(
            OBSERVATIONS,
            augmentations={"c": networks.RandomShift(4)},
            body=networks.Chain(*LAYERS),
            memory=networks.Gru(6),
        ),
        networks.Blueprint(memory=networks.Lstm(6), policy=networks.Mlp(3), critic=networks.Residual(16, 1, norm=None)),
        networks.Blueprint(memory=networks.Attention(32, window=8), body=Custom(3), policy=make_custom, critic=Custom),
    ],
)
def test_a_blueprint_is_written_as_code_that_defines_it(blueprint):
    write_network_file(Path(), blueprint)
    assert describe(load_blueprint(Path(), "nn.py", {})) == describe(blueprint)
    write_network_file(Path(), lambda: blueprint)
    assert describe(load_blueprint(Path(), "nn.py", {})) == describe(blueprint)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda size: None, r"<lambda> cannot be imported by the processes that load the run: define it in a module"),
        (Forgetful(3), "Forgetful does not keep its argument size as an attribute"),
    ],
)
def test_a_part_that_cannot_be_written_is_an_error(part, message):
    with pytest.raises(UserError, match=message):
        write_network_file(Path(), networks.Blueprint(body=part))
    assert not Path("nn.py").exists()
