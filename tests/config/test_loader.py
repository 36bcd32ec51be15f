"""Settings are declared once, merged strictly, and have an effect in the run that they are given for."""

import dataclasses
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from algorithm.adapters.curriculum import Gaussian, Lesson, MultiRange, Uniform
from algorithm.agents.settings import AcerSettings, ReactorSettings, SacSettings
from algorithm.config.loader import check_effects, read_assignments, resolve
from algorithm.config.registry import AGENTS, find_settings, get_agent_section
from algorithm.config.sections import SECTIONS, BaseConfig, ReplayConfig
from algorithm.config.yaml_layers import load_defaults, nest, read_own_variant, read_variant
from algorithm.errors import UserError
from algorithm.runs.run_requests import resolve_effective
from algorithm.specs import ActionSpec, Role

RANGES = MultiRange([[0, 1], [2, 3]])
SHORT = {"env_type": "PROBE", "env_name": "choice", "max_step": 40, "log_every": 20, "n_envs": 1}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_one_declared_type_and_one_default(section):
    fields = SECTIONS[section].model_fields
    assert set(load_defaults()[section]) == {field.alias or name for name, field in fields.items()}
    assert all(field.is_required() for field in fields.values())


@pytest.mark.parametrize("name", AGENTS)
def test_settings_of_agents_have_one_default_each(name):
    fields = dataclasses.fields(find_settings("algorithm", name))
    assert set(load_defaults()[get_agent_section(name)]) == {field.name for field in fields}
    assert all(field.default is field.default_factory is dataclasses.MISSING for field in fields)


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
opponent_config.opponents=[latest] opponent_config.evaluation_opponent=past | past needs past among opponent_config.opp
acer_config.gamma=high | acer_config.gamma is 'high'; input should be a valid number
acer_config.gamma=1.5 | acer_config.gamma is 1.5; it must be from 0 to 1
acer_config.batch_size=0 | acer_config.batch_size is 0; it must be at least 1
acer_config.batch_size=2.5 | acer_config.batch_size is 2.5; input should be a valid integer
acer_config.trust_region=half | acer_config.trust_region is 'half'; input should be 'off', 'efficient' or 'full'
acer_config.optimizer=sgd | acer_config.optimizer is 'sgd'; input should be 'adam', 'adamw' or 'rmsprop'
acer_config=3 | acer_config is a section; its settings go below it, not 3
base_config.n_envs=0 | base_config.n_envs is 0; it must be from 1 to 65,536
base_config.n_envs=2 base_config.env_groups=3 | env_groups 3 must not be above n_envs 2
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
auxiliaries.behavior_cloning.end=0.5 base_config.max_step=null | end is a part of base_config.max_step, which is not set
tune.seeds=0 | --set: tune.seeds is 0;
tune.objective=loss | --set: tune.objective is 'loss';
tune.space=3 | --set: tune.space is 3;
nn_config=3 | nn_config is 3; it must be a mapping
auxiliaries=3 | auxiliaries is 3; it must be a mapping
base_config.runtime=WORKERS base_config.histograms=[actions] | histograms of actions are not for runtime WORKERS
reset_config.g=heavy | reset_config.g is 'heavy'; it must be a number
reset_config.g={"sampler_type":"unifrom","sampler_parameters":{}} | reset_config.g.sampler_type is 'unifrom'; the
reset_config.g={"sampler_type":"uniform","sampler_parameters":{"min_value":1}} | g.sampler_parameters.max_value
reset_config.g={"curriculum":[{"name":"a"}]} | reset_config.g.curriculum[0] is {'name': 'a'}; a lesson has
ma_config.A.acer_config.gama=1 | ma_config.A: unknown setting acer_config.gama; did you mean acer_config.gamma?
ma_config.A.acer_config.gamma=2.0 | ma_config.A: acer_config.gamma is 2.0; it must be from 0 to 1
ma_config.A.base_config.n_envs=2 | ma_config.A: base_config.n_envs is the same for all roles
ma_config.A.agent=3 | ma_config.A.agent is 3; it must be the name of an agent
ma_config.A.agent=B ma_config.A.nn_config={} | ma_config.A.nn_config has no effect: A is played by the agent B
base_config.unity_args.agents=0 | --set: base_config.unity_args.agents is 0; it must be at least 1
base_config.unity_args.width=0 | --set: base_config.unity_args.width is 0; it must be at least 1
base_config.unity_args.witdh=1 | unknown setting base_config.unity_args.witdh; did you mean base_config.unity
base_config.unity_args.build_path.amiga=x | base_config.unity_args.build_path
"""


@pytest.mark.parametrize("row", INVALID.strip().splitlines())
def test_an_invalid_setting_is_an_error_of_one_line_with_its_path(row):
    assignments, message = row.split(" | ")
    with pytest.raises(UserError) as error:
        resolve([("--set", read_assignments(assignments.split()))])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_dashes_are_those_of_names_or_stand_for_underscores():
    tree = read_assignments(
        ["base-config.n-envs=3", "reset-config.wall-height=2", "ma_config.red-team.agent=blue-team"]
    )
    assert tree["base_config"] == {"n_envs": 3}
    assert tree["reset_config"] == {"wall-height": 2}
    assert tree["ma_config"] == {"red-team": {"agent": "blue-team"}}


def lessons(criteria: str) -> str:
    """Return a parameter with two lessons as YAML."""
    first = f"{{name: a, value: 1, completion_criteria: {{behavior: B, min_lesson_length: 5, {criteria}}}}}"
    return f"{{curriculum: [{first}, {{name: b, value: 2}}]}}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9.81", 9.81),
        ("{sampler_type: uniform, sampler_parameters: {min_value: 0.5, max_value: 2}}", Uniform(0.5, 2)),
        ("{sampler_type: gaussian, sampler_parameters: {mean: 1, st_dev: 0.3}}", Gaussian(1, 0.3)),
        ("{sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1], [2, 3]]}}", RANGES),
        (lessons("measure: reward, threshold: 0.5"), (Lesson("a", 1.0, "B", 5, 0.5), Lesson("b", 2.0))),
    ],
)
def test_environment_parameters_are_read_in_the_grammar_of_ml_agents(given, expected):
    tree = {"base_config": {"max_step": None}, "reset_config": {"gravity": yaml.safe_load(given)}}
    assert resolve([("test", tree)]).reset == {"gravity": expected}


@pytest.mark.parametrize(
    ("criteria", "max_step", "message"),
    [
        ("measure: progress, threshold: 0.5", None, "reset_config.g: lessons by progress use .*max_step, which is not"),
        (
            "measure: progress, threshold: 50",
            100,
            r"\[0\].completion_criteria.threshold is 50.0; progress is from 0 to 1",
        ),
        ("measure: Elo, threshold: 1", 100, "reset_config.g: the measure elo needs opponents"),
    ],
)
def test_lessons_that_cannot_be_measured_are_errors(criteria, max_step, message):
    parameter = yaml.safe_load(lessons(criteria))
    with pytest.raises(UserError, match=message):
        resolve([("test", {"reset_config": {"g": parameter}, "base_config": {"max_step": max_step}})])


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


# Settings after --set, with a part of the error; those of an algorithm follow its name.
UNUSED = """
opponent_config.window=3 | opponent_config.window is for opponents with past, and so has no effect
opponent_config.opponents=[random] opponent_config.save_steps=3 | opponent_config.save_steps is for opponents with past
opponent_config.swap_steps=3 | opponent_config.swap_steps has no effect, since opponents is []
sac_config.gamma=0.5 | sac_config.gamma is for algorithm SAC, not for ACER, and so has no effect
base_config.algorithm=SAC acer_config.gamma=0.5 | acer_config.gamma is for algorithm ACER, not for SAC
base_config.algorithm=sac acer_config.gamma=0.5 | acer_config.gamma is for algorithm ACER
base_config.unity_args.width=50 | base_config.unity_args.width is for env_type UNITY, not for GYM
base_config.device=cpu base_config.inference_device=device | base_config.inference_device has no effect, since device is
replay_config.alpha=0.5 | replay_config.alpha is for sampler prioritized, not for uniform
replay_config.max_error_weight=0.5 | replay_config.max_error_weight has no effect, since sampler is uniform
replay_config.sampler=lazy replay_config.beta=0.5 | beta is for sampler prioritized, not for lazy
replay_config.sampler=PRIORITIZED replay_config.uniform_fraction=0.5 | is for sampler lazy, not for
acer_config.replay_ratio=0 replay_config.capacity=9 | replay_config.capacity has no effect, since rep
acer_config.replay_ratio=0 acer_config.batch_size=9 | acer_config.batch_size has no effect, since rep
acer_config.rho_clip=2 | acer_config.rho_clip is for estimator vtrace, not for retrace
acer_config.optimizer=rmsprop acer_config.optimizer_beta1=0.5 | acer_config.optimizer_beta1 is for optimizer adam or ada
acer_config.std_min=0.2 | acer_config.std_min has no effect, since std is fixed
acer_config.trust_region=off acer_config.trust_region_delta=1 | acer_config.trust_region_delta is for trust_region effic
acer_config.trust_region=full acer_config.trust_region_delta=1 | acer_config.trust_region_delta is for trust_region effi
acer_config.trust_region_kl=0.1 | acer_config.trust_region_kl is for trust_region full, not for efficient
acer_config.epsilon_inside=true | acer_config.epsilon_inside is for optimizer rmsprop, not for adam
acer_config.weight_decay=0.1 | acer_config.weight_decay is for optimizer adamw, not for adam
SAC: weight_decay=0.1 | sac_config.weight_decay is for optimizer adamw, not for adam
acer_config.learning_rate_final_fraction=0.5 | acer_config.learning_rate_final_fraction is for learning_rate_schedule li
SAC: learning_rate_final_fraction=0.5 | sac_config.learning_rate_final_fraction is for learning_rate_schedule linear or
SAC: n_atoms=9 | sac_config.n_atoms is for critic categorical, not for scalar
SAC: v_max=9 | sac_config.v_max is for critic categorical, not for scalar
SAC: reset_shrink=0.5 | sac_config.reset_shrink has no effect, since reset_every is null
SAC: target=none tau=1 | sac_config.tau is for target average, not for none
SAC: target=none update_target_per_step=2 | sac_config.update_target_per_step is for target average, not for none
SAC: target_entropy_std=0.1 target_c_alpha=2 | sac_config.target_c_alpha is for target_entropy_std null, not for 0.1
SAC: use_auto_alpha=false target_entropy_std=0.1 | sac_config.target_entropy_std is for use_auto_alpha true, not for fal
SAC: discrete_dqn_like=true policy_update_every=2 | sac_config.policy_update_every has no effect, since discrete_dqn_lik
SAC: v_rho=2 | sac_config.v_rho has no effect, since n_step is 1
base_config.algorithm=A2C replay_config.capacity=9 | replay_config.capacity has no effect, since alg
base_config.algorithm=ppo replay_config.sampler=lazy | replay_config.sampler has no effect, since alg
base_config.algorithm=PPO a2c_config.gamma=0.5 | a2c_config.gamma is for algorithm A2C, not for PPO
SAC: sequence_length=4 n_step=4 estimator=retrace v_rho=2 | sac_config.v_rho is for estimator vtrace, not for retrace
SAC: use_auto_alpha=false target_d_alpha=0.1 | is for use_auto_alpha true, not
SAC: discrete_dqn_epsilon=0.2 | is for discrete_dqn_like true, not for false
reactor_config.gamma=0.5 | reactor_config.gamma is for algorithm REACTOR, not for ACER, and so has
base_config.algorithm=REACTOR acer_config.gamma=0.5 | acer_config.gamma is for algorithm ACER, not for REACTOR
REACTOR: loo_beta=one importance_clip=2 | reactor_config.importance_clip is for loo_beta truncated, not for one, and so
REACTOR: importance_clip=2 | importance_clip is for loo_beta truncated, not for inverse
REACTOR: policy_gradient=truncated_importance loo_beta=one | loo_beta is for policy_gradient leave_one_out, not for trun
REACTOR: critic=scalar n_atoms=11 | reactor_config.n_atoms is for critic categorical, not for scalar
REACTOR: critic=scalar distributional=recursive | reactor_config.distributional is for critic categorical, not for scala
REACTOR: critic=scalar reward_normalization=return_std v_min=-3 | reactor_config.v_min is for critic categorical, not fo
REACTOR: critic=scalar reward_normalization=return_std v_max=3 | reactor_config.v_max is for critic categorical, not for
REACTOR: optimizer=rmsprop optimizer_beta1=0.5 | reactor_config.optimizer_beta1 is for optimizer adam or adamw, not for
tracker_config.project=a | tracker_config.project has no effect, since tracker is none
base_config.tracker=mlflow tracker_config.address=http://a:1 | address is for mode online, not for offline
ma_config.a.sac_config.gamma=0.5 | ma_config.a.sac_config.gamma is for algorithm SAC, not
ma_config.a.replay_config.alpha=0.5 | ma_config.a.replay_config.alpha is for sampler prioritized
"""


# Settings after --set that have an effect.
USED = """
acer_config.gamma=0.5 replay_config.capacity=900 nn_config.units=3 goal=null
SAC: gamma=0.5
base_config.env_type=unity base_config.unity_args.width=50
replay_config.sampler=lazy replay_config.max_error_weight=0.5 replay_config.uniform_fraction=0.5
ma_config.a.replay_config.sampler=prioritized ma_config.a.replay_config.alpha=0.5
acer_config.estimator=vtrace acer_config.rho_clip=2
SAC: sequence_length=4 n_step=4 v_rho=2
base_config.env_args.acer_config=1
base_config.algorithm=REACTOR reactor_config.v_min=-3 replay_config.sampler=lazy
REACTOR: loo_beta=truncated importance_clip=2
REACTOR: policy_gradient=truncated_importance importance_clip=2
REACTOR: critic=scalar v_max=3
REACTOR: reward_normalization=null v_max=3
"""


def read_row(text):
    """Return the layers of settings after --set; those of an algorithm follow its name."""
    algorithm, _, own = text.rpartition(": ")
    assignments = own.split()
    if algorithm:
        section = get_agent_section(algorithm)
        assignments = [f"base_config.algorithm={algorithm}", *(f"{section}.{setting}" for setting in assignments)]
    return [("--set", read_assignments(assignments))]


@pytest.mark.parametrize("row", UNUSED.strip().splitlines())
def test_a_setting_without_effect_is_an_error(row):
    given, message = row.split(" | ")
    layers = read_row(given)
    with pytest.raises(UserError) as error:
        check_effects(resolve(layers), layers)
    assert str(error.value).startswith("--set: ") and message in str(error.value)


@pytest.mark.parametrize("row", USED.strip().splitlines())
def test_a_setting_with_an_effect_is_accepted(row):
    layers = read_row(row)
    check_effects(resolve(layers), layers)


@pytest.mark.parametrize("section", [BaseConfig, ReplayConfig, AcerSettings, SacSettings, ReactorSettings])
def test_conditions_name_existing_settings_and_values(section):
    hints = get_type_hints(section, include_extras=True)
    for name, hint in hints.items():
        for condition in getattr(hint, "__metadata__", ()):
            for part in getattr(condition, "conditions", [condition]):  # of AnyOf
                assert set(getattr(part, "values", ())) < set(hints) - {name}


CONFIG = {
    "default": {
        "base_config": SHORT,
        "acer_config": {"gamma": 0.9},
        "sac_config": {"gamma": 0.9, "batch_size": 4, "learning_starts": 10},
    },
    "sac": {"base_config": {"algorithm": "SAC"}},
    "child": {"inherit": "mistaken"},
    "mistaken": {"base_config": {"algorithm": "SAC"}, "acer_config": {"gamma": 0.5}},
}


ACER = {"default": {"base_config": SHORT, "acer_config": {"batch_size": 4}}}


def resolve_variant(config, variant="default", *assignments):
    """Return the settings of a variant in a config.yaml, with those of --set on top."""
    path = Path("config.yaml")
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    given = [("--set", read_assignments(list(assignments)))]
    return resolve_effective((str(path), read_variant(path, variant)), read_own_variant(path, variant), given)


@pytest.mark.parametrize(
    ("config", "variant", "assignments"),
    [
        (CONFIG, "default", []),  # settings that variants share may have no effect in one of them
        (CONFIG, "sac", []),
        (CONFIG, "child", []),
        (ACER, "default", ["base_config.algorithm=SAC", "sac_config.batch_size=4"]),
        (ACER, "default", ["acer_config.replay_ratio=0"]),
        (ACER, "default", ["base_config.max_step=null", "base_config.max_iter=1"]),
    ],
)
def test_a_variant_and_the_command_line_may_remove_the_effect_of_a_setting_in_the_file(config, variant, assignments):
    resolve_variant(config, variant, *assignments)


def test_a_file_may_be_incomplete_without_the_command_line():
    acer = {"learning_rate_schedule": "linear", "std_min": 0.2}
    config = {"default": {"base_config": {**SHORT, "max_step": None}, "acer_config": acer}}
    with pytest.raises(UserError, match="which is not set"):
        resolve_variant(config)
    with pytest.raises(UserError, match=r"config.yaml: acer_config.std_min has no effect, since std is fixed"):
        resolve_variant(config, "default", "base_config.max_step=40")


@pytest.mark.parametrize(
    ("config", "variant", "assignments", "message"),
    [
        (CONFIG, "mistaken", [], "config.yaml: acer_config.gamma is for algorithm ACER, not for SAC"),
        (CONFIG, "sac", ["acer_config.gamma=0.5"], "--set: acer_config.gamma is for algorithm ACER"),
        (CONFIG, "default", ["sac_config.gamma=0.5"], "--set: sac_config.gamma is for algorithm SAC, not for ACER"),
        ({"default": CONFIG["default"]}, "default", [], "config.yaml: sac_config.gamma is for algorithm SAC, not for"),
    ],
)
def test_settings_written_for_the_run_must_have_an_effect(config, variant, assignments, message):
    with pytest.raises(UserError, match=f"^{message}"):
        resolve_variant(config, variant, *assignments)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("acer_config", "std", "learned"), ("acer_config", "tanh_squash", True), ("sac_config", "target_c_alpha", 2)],
)
def test_a_setting_for_actions_of_one_role_has_an_effect(section, key, value):
    algorithm = section.removesuffix("_config")
    layers = [("--set", {"base_config": {"algorithm": algorithm}, section: {key: value}})]
    discrete, box = (Role(1, {}, ActionSpec(**kind)) for kind in ({"branches": (2,)}, {"continuous": 1}))
    check_effects(resolve(layers), layers, {"a": discrete, "b": box})
    with pytest.raises(UserError, match=f"{section}.{key} is for continuous actions"):
        check_effects(resolve(layers), layers, {"a": discrete})
