"""Names of behaviors and metrics."""

import pytest

from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.names import get_role_name, split_team
from algorithm.adapters.wrappers import AdapterWrapper


@pytest.mark.parametrize(
    ("behavior", "name", "team", "role"),
    [("A/b?team=0", "A/b", "", "A_b"), ("A/b?team=2", "A/b", "-team2", "A_b-team2"), ("Ball", "Ball", "", "Ball")],
)
def test_a_team_of_a_behavior_is_a_role(behavior, name, team, role):
    assert (split_team(behavior), get_role_name(behavior)) == ((name, team), role)


def test_metrics_of_each_role_have_the_names_of_ml_agents():
    renamed = UnityAdapter.rename_metrics(
        {
            "rollout/return/Walker": 3.0,
            "rollout/length/Walker": 20.0,
            "train/entropy/Walker": 0.5,
            "train/critic_loss/Walker": 2.0,
            "train/rnd_critic_loss/Walker": 7.0,
            "train/policy_objective/Walker": -0.25,
            "train/actor_critic_learning_rate/Walker": 0.001,
            "train/critic_learning_rate/Walker": 0.1,
            "rollout/return/Duel-team1": -1.0,
            "scene/lesson/height": 2.0,
            "scene/Goals/Scored": 4.0,
            "time/updates": 10.0,
        }
    )
    of_scene = {"Environment/Lesson Number/height": 2.0, "Goals/Scored": 4.0}
    assert renamed == {
        "Walker": {
            "Environment/Cumulative Reward": 3.0,
            "Policy/Extrinsic Reward": 3.0,
            "Environment/Episode Length": 20.0,
            "Policy/Entropy": 0.5,
            "Policy/Learning Rate": 0.001,
            "Losses/Value Loss": 4.0,
            "Losses/Policy Loss": 0.25,
            **of_scene,
        },
        "Duel-team1": {"Environment/Cumulative Reward": -1.0, "Policy/Extrinsic Reward": -1.0, **of_scene},
    }


def test_other_simulators_have_no_other_names():
    assert AdapterWrapper.rename_metrics({"rollout/return": 3.0}) == {}
