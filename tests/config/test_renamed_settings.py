import pytest

from algorithm.cli.parser import FLAGS
from algorithm.config.loader import resolve
from algorithm.config.renamed_settings import find_renamed_flag
from algorithm.config.yaml_layers import load_defaults
from algorithm.errors import UserError

SAC, ACER = "sac_config", "acer_config"
RENAMED = [
    (ACER, "entropy", "entropy_coef"),
    (ACER, "critic_weight", "value_coef"),
    (ACER, "average_decay", "average_policy_decay"),
    (ACER, "decay", "trace_lambda"),
    (ACER, "retrace_clip", "trace_clip"),
    (ACER, "vtrace_clip", "rho_clip"),
    (ACER, "advantage_samples", "sdn_samples"),
    (ACER, "on_policy", "on_policy_updates"),
    (ACER, "squash", "tanh_squash"),
    *((section, "replay_start", "learning_starts") for section in (ACER, SAC)),
    *((section, "collect_steps", "rollout_length") for section in (ACER, SAC)),
    *((section, "trace_length", "sequence_length") for section in (ACER, SAC)),
    *((section, "std_floor", "std_min") for section in (ACER, SAC)),
    *((section, "normalize_returns", "reward_normalization") for section in (ACER, SAC)),
    ("base_config", "action_scale", "unbounded_action_limit"),
    ("base_config", "act_on", "inference_device"),
    ("base_config", "max_bad_updates", "max_nonfinite_updates"),
    ("replay_config", "eta", "max_error_weight"),
    ("replay_config", "uniform_share", "uniform_fraction"),
    ("goal", "within", "step_budget"),
]
OF_ROLES = [entry for entry in RENAMED if entry[0] not in ("base_config", "goal")]


def test_a_removed_setting_is_an_error_that_says_so():
    with pytest.raises(UserError, match="unknown setting base_config.cuda_graphs; not supported: no update is"):
        resolve([("test", {"base_config": {"cuda_graphs": "auto"}})])


# Distributed settings of Advanced-SAC, with a part of the advice.
DISTRIBUTED = {
    "noise_increasing_rate": r"it is now explorer: {action_noise: \[min, max\]}",
    "noise_max": r"it is now explorer: {action_noise: \[min, max\]}",
    "max_actors_each_learner": "it is now cluster_config.actors",
    "learner_host": "it is now --ray local, auto or HOST:PORT",
    "learner_port": "it is now --ray local, auto or HOST:PORT",
    "update_sac_bak_per_step": "it is now cluster_config.max_lag",
    "episode_queue_size": "it is now cluster_config.rollouts_in_flight",
    "batch_queue_size": "it is now cluster_config.rollouts_in_flight",
    "batch_generator_process_num": "not needed: batches are sampled from the replay",
    "episode_sender_process_num": "not needed: batches are sampled from the replay",
}


@pytest.mark.parametrize(("name", "advice"), DISTRIBUTED.items())
def test_the_error_for_a_distributed_setting_names_the_setting_to_use(name, advice):
    for section in (SAC, "base_config"):
        with pytest.raises(UserError, match=f"here: unknown setting {section}.{name}; {advice}"):
            resolve([("here", {section: {name: 1}})])
    new_name = advice.replace("\\", "").replace("it is now cluster_config", "it is now --set cluster_config")
    assert new_name in find_renamed_flag(name, FLAGS)


@pytest.mark.parametrize(
    "name",
    [
        "evolver_enabled",
        "evolver_cem_length",
        "evolver_cem_best",
        "evolver_cem_min_length",
        "evolver_cem_time",
        "evolver_remove_worst",
        "random_params",
    ],
)
def test_the_error_for_a_setting_of_the_evolver_in_another_section_names_its_section(name):
    for section in (SAC, "base_config"):
        with pytest.raises(UserError, match=rf"unknown setting .*; did you mean population_config.{name}\?"):
            resolve([("here", {section: {name: 1}})])


@pytest.mark.parametrize(("section", "old", "new"), RENAMED)
def test_an_earlier_name_is_an_error_that_names_the_setting(section, old, new):
    assert new in load_defaults()[section] and old not in load_defaults()[section]
    with pytest.raises(UserError, match=f"here: unknown setting {section}.{old}; it is now {section}.{new}"):
        resolve([("here", {section: {old: 1}})])
    assert new in find_renamed_flag(old, FLAGS)


@pytest.mark.parametrize(("section", "old", "new"), OF_ROLES)
def test_an_earlier_name_in_the_sections_of_a_role_is_an_error(section, old, new):
    with pytest.raises(UserError, match=f"ma_config.a: unknown setting {section}.{old}; it is now {section}.{new}"):
        resolve([("here", {"ma_config": {"a": {section: {old: 1}}}})])


@pytest.mark.parametrize("section", [ACER, SAC])
def test_the_error_for_an_earlier_switch_names_the_new_values(section):
    with pytest.raises(UserError, match=r"reward_normalization \(return_std or null\)"):
        resolve([("here", {section: {"normalize_returns": True}})])


@pytest.mark.parametrize("value", ["state", "State"])
@pytest.mark.parametrize("layer", ["top", "role"])
def test_an_earlier_value_is_an_error_that_names_the_value(value, layer):
    tree = {ACER: {"std": value}}
    with pytest.raises(UserError, match=f"acer_config.std is '{value}'; it is now state_dependent"):
        resolve([("here", tree if layer == "top" else {"ma_config": {"a": tree}})])


@pytest.mark.parametrize(("spelled", "word"), [("q", "action_value"), ("V", "state_value")])
def test_short_names_of_critics_are_recorded_in_full(spelled, word):
    settings = resolve([("here", {ACER: {"critic": spelled, "estimator": "vtrace"}})])
    assert settings.agent.critic == settings.tree[ACER]["critic"] == word


@pytest.mark.parametrize(("value", "read"), [(None, None), ("return_std", "return_std"), ("Return_STD", "return_std")])
def test_reward_normalization_is_a_word_or_null(value, read):
    assert resolve([("here", {ACER: {"reward_normalization": value}})]).agent.reward_normalization == read


@pytest.mark.parametrize("value", [True, False, "max"])
def test_reward_normalization_rejects_booleans(value):
    with pytest.raises(UserError, match=f"reward_normalization is {value!r}; input should be 'return_std'"):
        resolve([("here", {ACER: {"reward_normalization": value}})])
