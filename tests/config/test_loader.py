"""Every default is declared once, files are merged strictly, and an invalid setting is an error of one line."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from algorithm.config.loader import read_assignments, resolve
from algorithm.config.registry import SETTINGS, find_settings, get_agent_section
from algorithm.config.sections import SECTIONS
from algorithm.config.variants import read_variant
from algorithm.config.yaml_layers import DEFAULTS_FILE, load_defaults, nest
from algorithm.errors import UserError


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_one_declared_type_and_one_default(section):
    fields = SECTIONS[section].model_fields
    assert set(load_defaults()[section]) == {field.alias or name for name, field in fields.items()}
    assert all(field.is_required() for field in fields.values())


@pytest.mark.parametrize("name", SETTINGS["algorithm"])
def test_settings_of_agents_have_one_default_each(name):
    fields = dataclasses.fields(find_settings("algorithm", name))
    assert set(load_defaults()[get_agent_section(name)]) == {field.name for field in fields}
    assert all(field.default is field.default_factory is dataclasses.MISSING for field in fields)


def test_every_default_has_a_comment_on_its_line():
    for line in DEFAULTS_FILE.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith(("#", "optimizer: &", "  <<:")) and not line.rstrip().endswith(":"):
            assert "#" in line or line.startswith(("nn_config", "auxiliaries", "explorer")), line


def test_resolving_a_resolved_tree_changes_nothing():
    settings = resolve([("test", {"base_config": {"env_name": "CartPole-v1"}, "goal": {"return": 475}})])
    again = resolve([("again", yaml.safe_load(yaml.safe_dump(settings.tree)))])
    assert again == settings


def test_later_layers_override_earlier_ones_within_each_mapping():
    settings = resolve(
        [
            ("one", {"acer_config": {"gamma": 0.9, "entropy_coef": 0.5}}),
            ("two", read_assignments(["acer_config.gamma=0.95", "base_config.env_args.size=3"])),
        ]
    )
    assert settings.agent.gamma == 0.95
    assert settings.agent.entropy_coef == 0.5
    assert settings.base.env_args == {"size": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("2.5e-4", 0.00025), ("1E5", 100000.0), ("3", 3), ("off", False), ("-1.5", -1.5)],
)
def test_numbers_are_read_in_common_notations(text, value):
    assert read_assignments([f"a.b={text}"])["a"]["b"] == value


@pytest.mark.parametrize(
    ("path", "spelled", "value"),
    [
        ("acer_config.optimizer", "RMSprop", "rmsprop"),
        ("acer_config.optimizer", "RMSPROP", "rmsprop"),
        ("acer_config.trust_region", False, "off"),  # unquoted, in YAML
        ("acer_config.reward_normalization", None, None),
        ("acer_config.reward_normalization", "Return_STD", "return_std"),
        ("base_config.device", "CPU", "cpu"),
        ("base_config.device", "gpu", "cuda"),
        ("base_config.device", "GPU:1", "cuda:1"),
        ("base_config.device", "Auto", "auto"),
    ],
)
def test_words_are_read_in_common_spellings(path, spelled, value):
    settings = resolve([("test", nest(path, spelled))])
    section, _, key = path.partition(".")
    assert getattr(getattr(settings, settings.find_field(section)), key) == value


# Assignments, with a part of the error.
INVALID = """
acer_config.gamma=high | acer_config.gamma is 'high'; input should be a valid number
acer_config.gamma=1.5 | acer_config.gamma is 1.5; it must be from 0 to 1
acer_config.batch_size=0 | acer_config.batch_size is 0; it must be at least 1
acer_config.batch_size=2.5 | acer_config.batch_size is 2.5; input should be a valid integer
acer_config.trust_region=half | acer_config.trust_region is 'half'; input should be 'off', 'efficient' or 'full'
acer_config.optimizer=sgd | acer_config.optimizer is 'sgd'; input should be 'adam', 'adamw' or 'rmsprop'
acer_config=3 | acer_config is a section; its settings go below it, not 3
base_config.n_envs=0 | base_config.n_envs is 0; it must be from 1 to 65,536
base_config.device=tpu | base_config.device is 'tpu'
base_config.algorithm=TRPO | algorithm 'TRPO' is unknown; use one of: ACER
base_config.env_type=ROS | env_type 'ROS' is unknown; use one of: GYM, ATARI, DM_CONTROL, PETTINGZOO, UNITY
base_config.runtime=CLOUD | runtime 'CLOUD' is unknown; use one of: LOCAL
replay_config.capacity=-1 | replay_config.capacity is -1
replay_config.sampler=rank | replay_config.sampler is 'rank'; input should be 'uniform', 'prioritized' or
replay_config.td_error_min=0 | replay_config.td_error_min is 0.0; it must be above 0
replay_config.td_error_min=2 | replay_config: td_error_min 2.0 must not be above td_error_max 1.0
goal.return=much | goal.return is 'much'
acer_config.reward_normalization=true | reward_normalization is True; input should be 'return_std'
acer_config.reward_normalization=false | reward_normalization is False; input should be 'return_std'
acer_config.reward_normalization=max | reward_normalization is 'max'; input should be 'return_std'
acer_config.learning_rate_schedule=linear base_config.max_step=null | linear needs base_config.max_step, which is not
nn_config=3 | nn_config is 3; it must be a mapping
auxiliaries=3 | auxiliaries is 3; it must be a mapping
"""


@pytest.mark.parametrize("row", INVALID.strip().splitlines())
def test_an_invalid_setting_is_an_error_of_one_line_with_its_path(row):
    assignments, message = row.split(" | ")
    with pytest.raises(UserError) as error:
        resolve([("--set", read_assignments(assignments.split()))])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_variants_override_default_and_the_variants_they_inherit(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "default: {base_config: {n_envs: 2, seed: 1}}\n"
        "slow: {base_config: {n_envs: 1}}\n"
        "slower: {inherit: slow, base_config: {seed: 5}}\n"
    )
    assert read_variant(path, "default") == {"base_config": {"n_envs": 2, "seed": 1}}
    assert read_variant(path, "slower") == {"base_config": {"n_envs": 1, "seed": 5}}
    with pytest.raises(UserError, match="no variant 'fast'; use one of: default, slow, slower"):
        read_variant(path, "fast")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: {inherit: other}", "inherits 'other', which does not exist"),
        ("default: {inherit: default}", "inherits 'default', which inherits it"),
        ("default: [", "not YAML"),
        ("- 1", "expected a mapping"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path, text, message):
    path = Path(tmp_path) / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_variant(path, "default")
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_part_of_a_goal_can_be_set_over_a_goal_that_is_null():
    settings = resolve([("file", {"goal": None}), ("--set", {"goal": {"return": 5}})])
    assert (settings.goal.return_, settings.goal.step_budget) == (5, None)
    assert resolve([("file", {"goal": {"return": 5}}), ("--set", {"goal": None})]).goal is None


@pytest.mark.parametrize(("spelled", "word"), [("q", "action_value"), ("V", "state_value")])
def test_short_names_of_critics_are_recorded_in_full(spelled, word):
    settings = resolve([("here", {"acer_config": {"critic": spelled, "estimator": "vtrace"}})])
    assert settings.agent.critic == settings.tree["acer_config"]["critic"] == word
