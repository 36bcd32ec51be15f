"""YAML that is written is read back as it was."""

import yaml

from algorithm.experiment import yaml_text
from algorithm.experiment.yaml_text import commented


def test_what_is_commented_is_read_as_it_was():
    tree = {"a": {"b": "x" * 60, "c": 1e-5, "d": None, "e": [1, "off"], "f": {}, "h" * 50: "1"}, "g": "#: '"}
    lines = list(commented(tree, {"a": "one", "a.b": "two # of it", f"a.{'h' * 50}": "three"}))
    text = "default:\n" + "\n".join(lines)
    assert yaml_text.load(text) == {"default": tree}
    assert yaml.safe_load(text)["default"]["a"]["b"] == "x" * 60
    assert [line.partition("# ")[2] for line in lines[:2]] == ["one", "two # of it"]
