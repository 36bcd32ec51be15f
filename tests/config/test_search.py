"""The dimensions of the space of a search, and the samples of a trial."""

from unittest.mock import Mock

import pytest

from algorithm.config.search import Choices, NumberRange, read_space
from algorithm.config.yaml_layers import nest
from algorithm.errors import UserError

LEARNING_RATE = "acer_config.learning_rate"
NOT_A_DIMENSION = r"it must be \{low: ..., high: ...\}, with log: true"


def make_trial(number=None):
    """Return a trial of Optuna that suggests this number, and the last of the choices."""
    trial = Mock(suggest_float=Mock(return_value=number), suggest_int=Mock(return_value=number))
    trial.suggest_categorical.side_effect = lambda path, choices: choices[-1]
    return trial


def read(space):
    """Return the dimensions of a space in a file."""
    return read_space(space, [("file", {"tune": {"space": space}})])


def test_ranges_and_choices_are_read_with_their_source_and_paths_may_be_nested():
    found = read({LEARNING_RATE: {"low": 1e-4, "high": 1e-2, "log": True}, "base_config.n_envs": {"choices": [1, 8]}})
    assert found == [
        Choices(path="base_config.n_envs", source="file", values=[1, 8]),
        NumberRange(path=LEARNING_RATE, source="file", low=1e-4, high=1e-2, log=True),
    ]
    value = {"low": 0.5, "high": 1.0}
    assert read(nest("acer_config.gamma", value)) == read({"acer_config.gamma": value})


def test_null_removes_a_dimension_and_its_source_is_the_layer_that_sets_it():
    assert read({LEARNING_RATE: None, "nn_config.units": None}) == []
    with pytest.raises(UserError, match="^file: tune.space: unknown setting acer_config.learnin$"):
        read({"acer_config.learnin": None})
    space = {LEARNING_RATE: {"low": 1.0, "high": 2.0}}
    layers = [("file", {"tune": {"space": {}}}), ("--set", {"tune": {"space": space}})]
    assert read_space(space, layers)[0].source == "--set"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (3, NOT_A_DIMENSION),
        ({}, NOT_A_DIMENSION),
        ({"low": 1.0}, NOT_A_DIMENSION),
        ({"low": 1.0, "high": 2.0, "choices": [1]}, NOT_A_DIMENSION),
        ({"low": 1.0, "high": 2.0, "step": 1}, NOT_A_DIMENSION),
        ({"low": 2.0, "high": 1.0}, r"low 2.0 must be below high 1.0"),
        ({"low": 1.0, "high": 1.0}, r"low 1.0 must be below high 1.0"),
        ({"low": "a", "high": 1.0}, r"low is a; it must be a number"),
        ({"low": True, "high": 2}, r"low is true; it must be a number"),
        ({"low": 0.0, "high": float("inf")}, r"high is .*; it must be a number"),
        ({"low": 0.0, "high": 1.0, "log": True}, r"low is 0.0; with log: true it must be above 0"),
        ({"low": 0.1, "high": 1.0, "log": 1}, r"log is 1; it must be true or false"),
        ({"choices": [1]}, r"choices is \[1\]; it must be a list of at least two values"),
        ({"choices": 1}, r"choices is 1; it must be a list of at least two values"),
        ({"choices": [1, 2, 1]}, r"choices contains 1 twice"),
    ],
)
def test_the_error_for_a_dimension_is_one_line_with_its_source_and_path(value, error):
    with pytest.raises(UserError, match=f"^file: tune.space: {LEARNING_RATE}.*{error}") as raised:
        read({LEARNING_RATE: value})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("low", "log", "number", "expected"),
    [
        (0.00123456, True, 0.123456, 0.1235),
        (0.00123456, True, 0.00123457, 0.001235),
        (0.12349, False, 0.12344, 0.12349),
    ],
)
def test_numbers_have_four_digits_and_stay_within_the_limits(low, log, number, expected):
    trial = make_trial(number)
    assert NumberRange(path="a.b", source="", low=low, high=1.0, log=log).sample(trial) == expected
    trial.suggest_float.assert_called_once_with("a.b", low, 1.0, log=log)


def test_choices_are_recorded_as_text_and_keep_their_values():
    trial, values = make_trial(), [[64, 64], None, True, {"a": 1.5}]
    assert Choices(path="a.b", source="", values=values).sample(trial) == {"a": 1.5}
    trial.suggest_categorical.assert_called_once_with("a.b", ["[64, 64]", "null", "true", "{a: 1.5}"])
