"""YAML that is written is read back unchanged, also a variant in the config.yaml of a folder."""

import math
from pathlib import Path

import pytest
import yaml

from algorithm.config import yaml_layers
from algorithm.errors import UserError


@pytest.fixture(autouse=True, params=["libyaml", "python"])
def _parser(request, monkeypatch):
    """Parse with libyaml if PyYAML has it, and without it."""
    if request.param == "python":
        monkeypatch.setattr(yaml_layers, "_Loader", type("_Loader", (yaml_layers._Rules, yaml.SafeLoader), {}))


def test_commented_yaml_is_read_back_unchanged():
    tree = {
        "a": {"b": "x" * 60, "c": 1e-5, "d": None, "e": [1, "off", "1e-3", "010", "1:30"], "f": {}, "h" * 50: "1"},
        "g": "#: '",
    }
    lines = list(yaml_layers.format_commented(tree, {"a": "one", "a.b": "two # of it", f"a.{'h' * 50}": "three"}))
    text = "default:\n" + "\n".join(lines)
    assert yaml_layers.parse_yaml(text) == {"default": tree}
    assert yaml.safe_load(text)["default"]["a"]["b"] == "x" * 60
    assert [line.partition("# ")[2] for line in lines[:2]] == ["one", "two # of it"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("+3", 3),
        ("-0", 0),
        ("1_000_000", 1_000_000),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("0.5", 0.5),
        ("1_000.5", 1000.5),
        ("-.inf", -math.inf),
        ("off", False),
        ("Yes", True),
        ("~", None),
        ("", None),
        # text that is not a number
        ("1,000", "1,000"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("'010'", "010"),
        ('"1:30"', "1:30"),
    ],
)
def test_unquoted_words_have_their_common_meaning(text, value):
    found = yaml_layers.parse_yaml(text)
    assert (found, type(found)) == (value, type(value))
    assert yaml_layers.parse_yaml(yaml_layers.format_yaml({"a": value})) == {"a": value}


@pytest.mark.parametrize(
    "text", ["010", "-010", "08", "00", "00.5", "1:30", "12:00:00", "1:30.5", "0x1F", "0b11", "0o17", "1_", "1__0"]
)
def test_a_number_that_is_not_decimal_is_rejected(text):
    with pytest.raises(
        ValueError, match=f"^{text} is not a decimal number; write one without leading zeros, or text in"
    ):
        yaml_layers.parse_yaml(text)
    assert yaml_layers.parse_yaml(yaml_layers.format_yaml([text])) == [text]


def make_bomb(start: str, end: str) -> str:
    """Return mappings or lists that each repeat the one before nine times, 30 times in a row."""
    lines = [f"a0: &a0 {start.partition('<')[0]}{end[-1]}"]
    for level in range(30):
        lines.append(f"a{level + 1}: &a{level + 1} {start}{', '.join([f'*a{level}'] * 9)}{end}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 010", "line 2: 010 is not a decimal number"),
        ("[" * 41, "it is nested more than 40 levels deep"),
        ("{a: " * 41, "it is nested more than 40 levels deep"),
        ("[" * 3000, "nest"),
        ("1" * 301, "an integer has more than 300 digits"),
        ("1e400", "1e400 is larger than any float"),
        ("!!python/object:os.system {}", "tags are not read"),
        ("!!bool word", "tags are not read"),
        ("a: &a [*a]", "*a contains itself"),
        (make_bomb("[", "]"), "it has more than 20,000 values, counting those that aliases repeat"),
        (make_bomb("{<<: [", "]}"), "it has more than 20,000 values, counting those that aliases repeat"),
        (f"[{'1, ' * 20_001}]", "it has more than 20,000 values"),
        ("\n".join(f"k{key % 9_000}: 1" for key in range(9_001)), "k0 is defined twice"),
        ("a: {b: 1, b: 2}", "not YAML: b is defined twice"),
        ("<<", "not YAML"),
        ("[", "not YAML: while parsing a flow node"),
        ("\0", "not YAML"),
    ],
)
def test_unreadable_yaml_is_an_error_of_one_line(text, message):
    with pytest.raises(ValueError) as error:
        yaml_layers.parse_yaml(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_anchors_and_merges_are_read():
    assert yaml_layers.parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1},
    }


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
    yaml_layers.write_variant(path, name, tree, "a comment")
    return path.read_bytes().decode()


def test_a_new_variant_is_added_at_the_end_once():
    written = write(TEXT, "tuned")
    assert written == TEXT + "\n" + yaml_layers.format_variant("tuned", TREE, "a comment")
    assert yaml_layers.read_yaml(Path("config.yaml"))["tuned"] == TREE
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
    assert write(written, "tuned") == written


@pytest.mark.parametrize("name", ["first", "second", "default"])
def test_a_variant_is_replaced_with_the_comment_above_it(name):
    written = write(TEXT, name, {"acer_config": {"gamma": 0.5}})
    comments = {"default": "# The environment.", "first": "# The first variant.", "second": "# The second variant."}
    for other, comment in comments.items():
        assert (comment in written) == (other != name)
    assert ("# inside" in written) == (name != "first")
    assert list(yaml_layers.read_yaml(Path("config.yaml"))) == ["default", "first", "second"]


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
    assert yaml_layers.read_yaml(Path("config.yaml"))[name] == {"goal": None}
