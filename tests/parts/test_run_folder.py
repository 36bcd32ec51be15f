"""Run folders: places, names, roles and settings, whose changes in a resumed run are logged or rejected."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml

from algorithm.config.loader import read_assignments, resolve
from algorithm.config.yaml_layers import merge
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder, find_changes, format_run_name, list_changes
from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role


def make_folder(tmp_path, algorithm="ACER", **agent):
    (tmp_path / "envs").mkdir()
    base = {"env_name": "CartPole-v1", "n_envs": 2, "algorithm": algorithm}
    tree = resolve([("test", {"base_config": base, f"{algorithm.lower()}_config": agent})]).tree
    return RunFolder.create("some/task", tmp_path / "envs", "a", tree)


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path)


@pytest.mark.parametrize("pattern", ["x_{time}", "x_<time>"])
def test_the_start_time_is_inserted_into_the_name(pattern):
    start = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    assert format_run_name(pattern, start) == "x_20260304-050607"


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\\b", "a:b", ".hidden"])
def test_a_name_must_be_a_plain_folder_name(name):
    with pytest.raises(UserError, match="plain folder name"):
        format_run_name(name, 0)


def test_the_latest_run_is_found_without_a_name(folder):
    assert RunFolder.find("some/task", None).path == folder.path
    assert RunFolder.find("some/task", "a").path == folder.path
    with pytest.raises(UserError, match="no run 'b'.*the runs are: a"):
        RunFolder.find("some/task", "b")
    with pytest.raises(UserError, match="no run under"):
        RunFolder.find("some/other", None)


def test_roles_are_read_back_as_they_were_written(folder):
    gear = ActionPart("gear", (2,), "int64", n_values=(4, 2), start=(1, 0))
    gas = ActionPart("gas", (1,), "float32", low=(-0.1,), high=(1.0,))
    observed = {"obs": ObsSpec((3,), "uint8"), "place": ObsSpec((5,), "uint8", env_shape=(), n_values=(5,), start=(1,))}
    one = Role(2, observed, ActionSpec.from_parts([gear, gas]))
    two = Role(1, {"eye": ObsSpec((2, 2))}, ActionSpec(continuous=2))
    folder.add_role("one", one)
    folder.add_role("two", two)
    again = RunFolder(folder.path)
    assert folder.read_roles() == again.read_roles() == {"one": one, "two": two}
    assert list(again.read_roles()) == ["one", "two"]
    places = Role(1, {"obs": ObsSpec((1,))}, ActionSpec.from_parts([replace(gear, key=0), replace(gas, key=1)]))
    folder.add_role("three", places)
    spec = RunFolder(folder.path).read_roles()["three"].action_spec
    assert isinstance(spec.to_env_units(np.zeros((1, 3), np.float32)), tuple)


def test_roles_of_another_version_are_an_error_of_one_line(folder):
    old = {"lanes": 2, "obs_specs": {"obs": {"shape": [3], "dtype": "uint8"}}}
    old["action_spec"] = {"continuous": 0, "branches": [4], "start": [1]}
    (folder.path / "roles.json").write_text(json.dumps({"agent": old}))
    with pytest.raises(
        UserError, match="roles.json is damaged .*agent.action_spec.* of another version.*--resume writes it again"
    ):
        folder.read_roles()


def resumed(folder, *assignments):
    settings = folder.load_settings(("--set", read_assignments(list(assignments))))
    return settings, list_changes(folder.read_last_settings(), settings)


def test_without_changes_but_in_the_case_of_words_nothing_is_logged(folder):
    settings, lines = resumed(folder)
    assert lines == []
    assert settings.tree == folder.load_settings().tree
    assert resumed(folder, "base_config.env_type=gym", "base_config.algorithm=Acer")[1] == []


def test_settings_that_an_older_version_did_not_have_are_no_changes(folder):
    last = folder.read_last_settings()
    del last["base_config"]["export_format"], last["sac_config"], last["opponent_config"]
    assert list_changes(last, folder.load_settings()) == []
    changed = folder.load_settings(("--set", read_assignments(["base_config.export_format=plain"])))
    assert list_changes(last, changed) == ["base_config.export_format: sentis -> plain"]


def test_settings_that_an_older_version_of_a_users_algorithm_did_not_have_are_no_changes():
    given = {"base_config": {"env_type": "GYM", "env_name": "CartPole-v1", "algorithm": "examples.td3.td3:TD3"}}
    settings = resolve([("test", given)])
    last = {**settings.tree, "td3_config": {"gamma": 0.99}}
    assert list_changes(last, settings) == []


# Algorithm, its settings, a change of the run's settings, and its values before and after.
ALLOWED = """
ACER {} acer_config.learning_rate=0.5 | 0.003 -> 0.5
ACER {} base_config.max_step=null | 1000000 -> null
ACER {} base_config.device=cpu | auto -> cpu
ACER {} base_config.seed=3 | 0 -> 3
ACER {} base_config.evaluate_greedy=false | true -> false
ACER {} acer_config.sequence_length=40 | 20 -> 40
ACER {} goal.return=475 | null -> 475
ACER {} base_config.env_args.optimizer=3 | null -> 3
ACER {} ma_config.A.acer_config.gamma=0.5 | null -> 0.5
ACER {trust_region:efficient} acer_config.trust_region=false | efficient -> false
SAC {use_auto_alpha:false} sac_config.init_log_alpha=-1.0 | -2.3 -> -1.0
REACTOR {critic:scalar} reactor_config.v_max=3.0 | 5.0 -> 3.0
REACTOR {} reactor_config.loo_beta=one | inverse -> one
REACTOR {} reactor_config.policy_gradient=truncated_importance | leave_one_out -> truncated_importance
REACTOR {} reactor_config.distributional=recursive | direct -> recursive
REACTOR {} reactor_config.policy_uniform_fraction=0.2 | 0.01 -> 0.2
REACTOR {} reactor_config.update_target_per_step=7 | 100 -> 7
REACTOR {} reactor_config.sequence_length=20 | 32 -> 20
"""


def change_settings(tmp_path, row: str) -> tuple[RunFolder, str, str]:
    """Return the folder of a run with the settings of a row, its change and what is expected."""
    given, expected = row.split(" | ")
    algorithm, own, change = given.split(" ", 2)
    return make_folder(tmp_path, algorithm, **yaml.safe_load(own.replace(":", ": "))), change, expected


@pytest.mark.parametrize("row", ALLOWED.strip().splitlines())
def test_each_changed_setting_is_logged_in_one_line(row, tmp_path):
    folder, change, values = change_settings(tmp_path, row)
    settings, lines = resumed(folder, change)
    assert lines == [f"{change.partition('=')[0]}: {values}"]
    folder.record_settings(settings.tree, env_steps=50)
    assert resumed(folder)[1] == []


# The same, with the reason why the change is not possible.
REFUSED = """
ACER {} base_config.env_type=PROBE | the
ACER {} base_config.env_name=Acrobot-v1 | the
ACER {} base_config.n_envs=4 | the
ACER {} base_config.nn=other.py | the
ACER {} base_config.name=b | the
ACER {} nn_config={units: 3} | the
ACER {} replay_config.capacity=900 | the
ACER {} replay_config.sampler=lazy | the
ACER {} replay_config.alpha=0.5 | the
ACER {} acer_config.rollout_length=30 | the
ACER {} acer_config.optimizer=rmsprop | the
ACER {} acer_config={critic: state_value, estimator: vtrace} | the
ACER {} acer_config.std=learned | the
ACER {} acer_config.tanh_squash=true | the
ACER {} base_config.unbounded_action_limit=2.0 | the
ACER {} base_config.env_wrappers=[gymnasium.wrappers:TimeAwareObservation] | the
ACER {} base_config.ignore_observations=[mission] | the
ACER {} ma_config.A.acer_config.rollout_length=30 | the
ACER {} ma_config.A.agent=B | the
ACER {trust_region:efficient} acer_config.trust_region=full | the
ACER {trust_region:full} acer_config.trust_region=efficient | the
SAC {} sac_config.ensemble_q_num=3 | the saved networks have this number of critics
SAC {} sac_config.use_auto_alpha=false | the saved temperatures are learned if this is true
SAC {} sac_config.init_log_alpha=-1.0 | the saved temperatures are learned ones
SAC {} sac_config.discrete_dqn_like=true | the saved networks have a policy if this is false
REACTOR {} reactor_config.critic=scalar | the saved network has the outputs of this critic
REACTOR {} reactor_config.n_atoms=21 | the saved critic has these atoms
REACTOR {} reactor_config.v_min=-3.0 | the saved critic has these atoms
REACTOR {} reactor_config.v_max=3.0 | the saved critic has these atoms
REACTOR {} reactor_config.reward_normalization=null | the saved statistics of return_max contain the largest discounted
REACTOR {} reactor_config.reward_normalization=return_std | the saved statistics of return_max contain the largest
REACTOR {} reactor_config.rollout_length=9 | the saved replay has rollouts of this length
REACTOR {} reactor_config.optimizer=rmsprop | the saved moments belong to this optimizer
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_changes_that_do_not_fit_the_saved_state_are_rejected(row, tmp_path):
    folder, change, reason = change_settings(tmp_path, row)
    line = rf"^{change.partition('=')[0]}.* -> .* is not possible with --resume: {reason}.*; train a new run instead$"
    with pytest.raises(UserError, match=line):
        resumed(folder, change)
    assert resumed(folder)[1] == []


def test_changes_in_an_edited_config_of_the_run_are_found(folder):
    text = folder.config_file.read_text()
    folder.config_file.write_text("# mine\n" + text.replace("gamma: 0.99", "gamma: 0.9", 1))
    settings, lines = resumed(folder)
    assert lines == ["acer_config.gamma: 0.99 -> 0.9"]
    folder.record_settings(settings.tree, env_steps=50)
    assert folder.config_file.read_text().startswith("# mine\n")
    assert resumed(folder)[1] == []
    folder.config_file.write_text(text.replace("n_envs: 2", "n_envs: 3"))
    with pytest.raises(UserError, match="n_envs: 2 -> 3"):
        resumed(folder)


def test_a_change_in_an_edited_config_must_have_an_effect(tmp_path):
    folder = make_folder(tmp_path, "SAC")
    folder.config_file.write_text(folder.config_file.read_text().replace("gamma: 0.99", "gamma: 0.9", 1))
    with pytest.raises(UserError, match="^acer_config.gamma: 0.99 -> 0.9 is for algorithm ACER, not for SAC"):
        resumed(folder)


def test_sections_are_compared_key_by_key_and_a_mapping_with_a_list_as_a_whole():
    old, new = {"goal": None, "a": {"b": 1}}, {"goal": {"return": 5, "step_budget": None}, "a": {"b": 1, "c": 2}}
    assert list(find_changes(old, new)) == [("goal.return", None, 5), ("a.c", None, 2)]
    assert list(find_changes(new, old)) == [("goal.return", 5, None), ("a.c", 2, None)]
    short, long = {"explorer": {"noise": [0, 1]}}, {"explorer": {"noise": {"levels": [0, 1]}}}
    assert list(find_changes(short, long)) == [("explorer.noise", [0, 1], {"levels": [0, 1]})]
    assert list(find_changes(long, short)) == [("explorer.noise", {"levels": [0, 1]}, [0, 1])]
    assert list(find_changes(long, {"explorer": {}})) == [("explorer.noise.levels", [0, 1], None)]


def test_settings_recorded_after_the_resumed_checkpoint_are_removed(folder):
    tree = folder.load_settings().tree
    later = merge(tree, {"acer_config": {"gamma": 0.5}})
    folder.record_settings(later, env_steps=500)
    assert folder.read_last_settings() == later
    folder.record_settings(tree, env_steps=300)  # its checkpoint of 500 was damaged
    assert folder.read_last_settings() == tree == folder.load_settings().tree
    assert [path.name for path in sorted((folder.path / "configs").iterdir())] == ["000000000000.yaml"]
