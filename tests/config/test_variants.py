"""Variants that are written into the config.yaml of a folder, whose other text stays as it is."""

from pathlib import Path

import pytest

from algorithm.config.variants import format_variant, write_variant
from algorithm.config.yaml_layers import read_yaml
from algorithm.errors import UserError

TEXT = """# The environment.
default:
  base_config: {env_name: CartPole-v1}   # an id

# The first variant.
first:   # with a comment
  acer_config: {gamma: 0.9}
  # inside

# The second variant.
second: {}
"""
TREE = {"inherit": "first", "acer_config": {"gamma": 0.95, "learning_rate": 1e-5}, "nn_config": {"units": [8, 8]}}


def write(text, name, tree=TREE):
    """Write a variant into a file with this text and return its new text."""
    path = Path("config.yaml")
    path.write_bytes(text.encode())
    write_variant(path, name, tree, "a comment")
    return path.read_bytes().decode()


def test_a_new_variant_is_added_at_the_end():
    written = write(TEXT, "tuned")
    assert written == TEXT + "\n" + format_variant("tuned", TREE, "a comment")
    assert read_yaml(Path("config.yaml"))["tuned"] == TREE
    assert written.splitlines()[-8:] == [
        "# a comment",
        "tuned:",
        "  inherit: first",
        "  acer_config:",
        "    gamma: 0.95",
        "    learning_rate: 1e-05",
        "  nn_config:",
        "    units: [8, 8]",
    ]


@pytest.mark.parametrize("name", ["first", "second", "default"])
def test_a_variant_is_replaced_with_the_comment_above_it(name):
    written = write(TEXT, name, {"acer_config": {"gamma": 0.5}})
    comments = {"default": "# The environment.", "first": "# The first variant.", "second": "# The second variant."}
    for other, comment in comments.items():
        assert (comment in written) == (other != name)
    assert ("# inside" in written) == (name != "first")
    assert list(read_yaml(Path("config.yaml"))) == ["default", "first", "second"]


def test_writing_twice_gives_the_same_text():
    once = write(TEXT, "tuned")
    assert write(once, "tuned") == once


def test_a_file_without_a_last_line_end_and_with_other_line_ends_keeps_them():
    assert write("default: {}", "tuned", {}).startswith("default: {}\n\n# a comment\n")
    written = write("default: {}\r\n", "tuned", {"goal": None})
    assert written == "default: {}\r\n\r\n# a comment\r\ntuned:\r\n  goal: null\r\n"


@pytest.mark.parametrize("text", ["{default: {}}\n", "default: {}\n...\n"])
def test_a_file_in_another_style_is_an_error_and_stays(text):
    with pytest.raises(UserError, match="config.yaml: a variant cannot be added to a file in this style"):
        write(text, "tuned")
    assert Path("config.yaml").read_text() == text


@pytest.mark.parametrize("name", ["a b", "1", "null", "ä", "a: b"])
def test_any_name_is_read_back(name):
    write(TEXT, name, {"goal": None})
    assert read_yaml(Path("config.yaml"))[name] == {"goal": None}
