"""Names of classes in settings, and what an error for an unknown setting or flag advises instead."""

import re
from dataclasses import dataclass

import pytest

from algorithm.agents.settings import OptimizerSettings
from algorithm.cli.parser import COMMANDS, FLAGS, load_command, make_command_parser, make_parser
from algorithm.config.loader import resolve
from algorithm.config.registry import SETTINGS, TABLES, find_class, find_settings, make_agent_defaults
from algorithm.config.unknown_settings import advise_flag, read_names_elsewhere
from algorithm.config.yaml_layers import iterate_paths, iterate_settings, load_defaults, load_inherited_defaults, nest
from algorithm.errors import UserError

NAMES = read_names_elsewhere()
TEXTS = sorted({text for texts in NAMES.values() for text in texts})


def test_everything_that_replaces_a_name_exists():
    text = "\n".join(TEXTS)
    assert set(re.findall(r"\b\w+_config(?:\.\w+)+", text)) <= set(iterate_paths(load_defaults()))
    parsers = [make_parser(), *(make_command_parser(name, load_command(path)) for name, path in COMMANDS.items())]
    options = {option for parser in parsers for option in parser._option_string_actions}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= options


def test_names_of_each_program_are_read():
    assert NAMES.keys() >= {"t_max", "save_model_per_minute", "evolver_port", "total_timesteps"}
    assert NAMES.keys() >= {"time_horizon", "wandb", "learner"}
    assert not NAMES.keys() & {"disable_sample", "update_target_per_step"}, "names that are the same"
    assert not any(re.search(r"[`\[]\w+\]\(|`", text) for text in TEXTS), "Markdown"


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("base_config.write_summary_per_step", "use base_config.log_every"),
        ("sac_config.learning_rate", "use sac_config.learning_rate_critic, sac_config.learning_rate_policy, sac"),
        ("sac_config.curiosity_strength", "use auxiliaries: {curiosity: {model: both, strength: 1}}"),
        ("sac_config.learner_port", "use the option --ray with the address of a cluster"),
        ("base_config.port", "use base_config.unity_args.base_port"),
        ("acer_config.worker_steps", "use acer_config.rollout_length"),
        ("inherited", "use inherit"),
        ("base_config.reset_on_iteration", "removed: every environment starts its next episode at once"),
        ("base_config.cuda_graphs", "removed: updates are not captured as CUDA graphs"),
        # settings of this program
        ("acer_config.gama", "did you mean acer_config.gamma?"),
        ("base_config.gamma", "did you mean acer_config.gamma?"),
        ("gamma", "did you mean acer_config.gamma?"),
        ("replay_config.batch_size", "did you mean acer_config.batch_size?"),
        ("sac_config.evolver_cem_time", "did you mean population_config.evolver_cem_time?"),
    ],
)
def test_the_error_for_an_unknown_setting_names_what_to_use(path, advice):
    with pytest.raises(UserError, match=f"^here: unknown setting {re.escape(f'{path}; {advice}')}"):
        resolve([("here", nest(path, 1))])
    with pytest.raises(UserError, match="^here: unknown setting qqqqqqqqqqqq$"):  # it resembles nothing
        resolve([("here", {"qqqqqqqqqqqq": 1})])


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--algo", "use --set base_config.algorithm=..."),
        ("--algorithm", "use --set base_config.algorithm=..."),  # a setting here
        ("--n-envs", "use --agents"),
        ("--total-timesteps", "use --max-step"),
        ("--t-max", "use --max-step N (base_config.max_step)"),
        ("--tau", "use --set acer_config.average_policy_decay=..."),
        ("--wandb", "use --set base_config.tracker=wandb"),
        ("--env", "not needed: the environment comes first"),
        ("--nonsense", None),
        ("--seed", None),  # of other commands
    ],
)
def test_a_flag_of_another_program_or_with_the_name_of_a_setting_has_advice(flag, advice):
    found = advise_flag(flag, FLAGS)
    assert found is None if advice is None else found.startswith(advice)


def test_every_setting_is_found_as_a_flag():
    for path in dict(iterate_settings(load_defaults())):
        flag = f"--{path.rpartition('.')[2].replace('_', '-')}"
        assert flag in FLAGS.values() or advise_flag(flag, FLAGS), path


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_entry_can_be_imported(kind, name):
    assert callable(find_class(kind, name))
    assert find_class(kind, name.lower()) is find_class(kind, name)
    assert kind not in SETTINGS or find_class(kind, name).Settings is find_settings(kind, name)


@dataclass(frozen=True, kw_only=True)
class OwnSettings(OptimizerSettings):
    """The settings of an algorithm of a user, which sets one setting of the optimizer."""

    optimizer_epsilon: float = 0.5
    gamma: float = 0.9


class Own:
    """An algorithm of a user."""

    Settings = OwnSettings


class Foreign:
    """A class whose settings are not those of an algorithm."""

    Settings = dict


def test_the_section_of_an_own_algorithm_inherits_the_optimizer():
    section = make_agent_defaults(f"{__name__}:Own")["own_config"]
    assert section == {**load_inherited_defaults(), "optimizer_epsilon": 0.5, "gamma": 0.9}


@pytest.mark.parametrize("kind", ["algorithm", "auxiliaries"])
def test_settings_of_another_kind_are_an_error(kind):
    with pytest.raises(UserError, match="the class needs a dataclass Settings that inherits algorithm"):
        find_settings(kind, f"{__name__}:Foreign")
