"""The settings of SAC in the agent's parts."""

import pytest

from algorithm.specs import ActionSpec
from tests.builders import make_role, make_sac, sac_settings

GROUPS = ("critic", "policy", "alpha")


def test_the_parameter_groups_follow_the_settings():
    rates = {f"learning_rate_{name}": 0.1 * (i + 1) for i, name in enumerate(GROUPS)}
    norms = {f"max_grad_norm_{name}": 1.0 + i for i, name in enumerate(GROUPS)}
    agent = make_sac(**rates, **norms, weight_decay=0.1, use_auto_alpha=True)
    assert agent.groups.keys() == set(GROUPS)
    for name, group in agent.groups.items():
        assert group.learning_rate == rates[f"learning_rate_{name}"]
        assert group.weight_decay == (0 if name == "alpha" else 0.1)  # a temperature does not decay to 1
        assert group.max_grad_norm == norms[f"max_grad_norm_{name}"]


@pytest.mark.parametrize("critic", ["scalar", "categorical"])
def test_rewards_are_scaled_to_the_range_of_the_atoms(critic):
    settings = {"critic": critic, "reward_normalization": "return_max", "reward_scale": 2.0}
    assert make_sac(**settings).reward_transform.return_bound == 2.5
    assert make_sac(**settings, v_min=-3.0, v_max=8.0).reward_transform.return_bound == 1.5


SEVERAL = {"n_step": 2, "sequence_length": 2}
CATEGORICAL, RETURN_MAX = {"critic": "categorical"}, {"reward_normalization": "return_max"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**CATEGORICAL, "clip_epsilon": 1.0}, "critic categorical has no clip_epsilon; set it to null"),
        ({**CATEGORICAL, "rescale_values": True}, "critic categorical has no rescale_values; set it to false"),
        ({**CATEGORICAL, **SEVERAL}, "with n_step 2 critic categorical has no importance ratios; set use_n_step_is"),
        (
            {**CATEGORICAL, **SEVERAL, "use_n_step_is": False, "v_lambda": 0.5},
            "with n_step 2 critic categorical needs v_lambda 1, not 0.5",
        ),
        ({"v_min": 1.0, "v_max": 0.5}, "v_min 1.0 must be below v_max 0.5"),
        (
            {"v_min": 0.0, "reward_normalization": "return_max"},
            "return_max needs v_min below 0 and v_max above 0, not 0.0",
        ),
        (
            {"v_max": -1.0, "reward_normalization": "return_max"},
            "needs v_min below 0 and v_max above 0, not -5.0 and -1",
        ),
        ({"target": "none", "clip_epsilon": 0.5}, "target none has no target critics for clip_epsilon"),
        ({"std_init": 0.5, "std_max": 0.5}, "std_max .* must be above std_init 0.5, and needs std_min above 0"),
        ({"std_init": 0.5, "std_max": 2.0, "std_min": 0.0}, "std_max .* must be above std_init 0.5, and needs std_min"),
        ({"n_step": 2}, "n_step 2 must not be above sequence_length 1"),
        ({"ensemble_q_sample": 3}, "ensemble_q_sample 3 is above ensemble_q_num 2"),
        ({"v_rho": 0.5}, "v_rho 0.5 must not be below v_c 1.0"),
        ({"std_init": 0.005}, "std_init 0.005 must be above std_min 0.01"),
    ],
    ids=str,
)
def test_impossible_settings_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        sac_settings(**changes)


def test_actions_that_are_not_supported_are_rejected():
    with pytest.raises(ValueError, match="discrete_dqn_like needs discrete branches only"):
        make_sac(make_role(spec=ActionSpec(1, (3,))), discrete_dqn_like=True)


@pytest.mark.parametrize(("std", "entropy"), [(None, -0.5), (0.15, -0.478181), (0.48, 0.684969)])
@pytest.mark.parametrize("spec", [ActionSpec(3), ActionSpec(2, (3,))], ids=str)
def test_the_target_entropy_of_continuous_actions(spec, std, entropy):
    agent = make_sac(make_role(spec=spec), target_c_alpha=0.5, target_entropy_std=std)
    assert agent.policy_learner.continuous_target_entropy == pytest.approx(spec.continuous * entropy, abs=1e-5)


@pytest.mark.parametrize("spec", [ActionSpec(2), ActionSpec(1, (3,))], ids=str)
def test_random_steps_of_continuous_actions_exclude_importance_ratios(spec):
    role = make_role(spec=spec)
    with pytest.raises(ValueError, match="random_steps does not support importance ratios of continuous actions"):
        make_sac(role, random_steps=9, **SEVERAL)
    assert make_sac(role, random_steps=9, **SEVERAL, use_n_step_is=False).random_steps == 9
    assert make_sac(role, random_steps=9).random_steps == 9
    assert make_sac(random_steps=9, **SEVERAL).random_steps == 9


@pytest.mark.parametrize("spec", [ActionSpec(2), ActionSpec(0, (3,)), ActionSpec(1, (3,))], ids=str)
def test_policy_and_critics_share_the_torso(spec):
    agent = make_sac(make_role(spec=spec))
    assert agent.policy.torso is agent.critics.torso
    own = {id(parameter) for parameter in agent.policy.torso.parameters()}
    assert own and not own & {id(parameter) for parameter in agent.groups["policy"].module.parameters()}
    assert not own & {id(parameter) for parameter in agent.target.network.parameters()}
