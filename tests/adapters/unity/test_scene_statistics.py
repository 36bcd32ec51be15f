"""Statistics of scenes, and metrics by their names in ML-Agents."""

from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.scene_statistics import StatisticsCollector
from algorithm.adapters.wrappers import AdapterWrapper


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


def test_statistics_are_aggregated_as_the_scene_requests():
    statistics = StatisticsCollector()
    statistics.add({"mean": [(1.0, 0), (3.0, 0)], "last": [(5.0, 1)], "sum": [(1.0, 2)]})
    statistics.add({"mean": [(8.0, 0)], "last": [(7.0, 1)], "sum": [(2.0, 2)], "shape": [(4.0, 3), (6.0, 3)]})
    assert statistics.take() == {"mean": 4.0, "last": 7.0, "sum": 3.0, "shape": 5.0}
    assert statistics.take() == {}
