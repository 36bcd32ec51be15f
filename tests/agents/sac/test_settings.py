"""The settings of SAC in the agent's parts."""

from dataclasses import asdict

import pytest

from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_sac, sac_settings

# No two of them are equal.
SCHEDULE = {
    "rollout_length": 5,
    "sequence_length": 7,
    "batch_size": 3,
    "replay_ratio": 1.5,
    "learning_starts": 11,
}
OPTIMIZER = {"learning_rate_schedule": "linear", "optimizer_decay": 0.7, "optimizer_epsilon": 0.01}
GROUPS = ("critic", "policy", "alpha")


def test_the_schedule_follows_the_settings():
    blueprint = Blueprint(encoders={"*": FrameStack(3, Vector())}, body=Mlp(4), memory=Gru(2))
    schedule = asdict(make_sac(blueprint=blueprint, burn_in_step=4, **SCHEDULE).schedule)
    # A stack of 3 frames needs the 2 rows before a sequence, in addition to the burn-in of the memory.
    others = {"replay_count_distribution": "fixed", "on_policy_updates": False, "burn_in": 6, "warmup_rows": 2}
    without_replay = {"uses_replay": True, "epochs": None, "minibatches": 1}
    assert schedule == {**SCHEDULE, **others, **without_replay}


def test_the_parameter_groups_follow_the_settings():
    rates = {f"learning_rate_{name}": 0.1 * (i + 1) for i, name in enumerate(GROUPS)}
    norms = {f"max_grad_norm_{name}": 1.0 + i for i, name in enumerate(GROUPS)}
    agent = make_sac(**rates, **norms, **OPTIMIZER, optimizer_beta1=0.3, use_auto_alpha=True)
    assert agent.groups.keys() == set(GROUPS)
    for name, group in agent.groups.items():
        assert {field: getattr(group, field) for field in OPTIMIZER} == OPTIMIZER
        assert (group.optimizer, group.learning_rate) == ("adam", rates[f"learning_rate_{name}"])
        assert group.max_grad_norm == norms[f"max_grad_norm_{name}"] and group.optimizer_beta1 == 0.3


def test_the_reward_transform_follows_the_settings():
    changes = {"reward_scale": 2.0, "reward_clip": 3.0, "reward_normalization": "return_std", "gamma": 0.5}
    transform = make_sac(**changes).reward_transform
    expected = {"scale": 2.0, "clip": 3.0, "reward_normalization": "return_std", "gamma": 0.5, "return_bound": None}
    assert asdict(transform) == expected


def test_checkpoints_name_the_target_network():
    assert list(make_sac().target_networks) == ["target"]


@pytest.mark.parametrize("spec", [ActionSpec(2), ActionSpec(0, (3,)), ActionSpec(1, (3,))], ids=str)
def test_policy_and_critics_share_the_torso(spec):
    agent = make_sac(Role(1, {"obs": ObsSpec((3,))}, spec))
    assert agent.policy.torso is agent.critics.torso
    own = {id(parameter) for parameter in agent.policy.torso.parameters()}
    assert own and not own & {id(parameter) for parameter in agent.groups["policy"].module.parameters()}
    assert not own & {id(parameter) for parameter in agent.target.network.parameters()}


def test_settings_without_any_batch_are_rejected():
    with pytest.raises(ValueError, match="replay_ratio 0 leaves nothing to learn from"):
        sac_settings(replay_ratio=0)


def test_std_init_is_above_std_min():
    with pytest.raises(ValueError, match="std_init 0.5 must be above std_min 0.5"):
        sac_settings(std_init=0.5, std_min=0.5)
