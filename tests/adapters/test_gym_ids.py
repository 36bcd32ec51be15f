"""Search for ids of Gymnasium by name."""

import gymnasium
import pytest

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.gym_ids import find_id, find_spec


@pytest.fixture(autouse=True)
def twins():
    """Register environments with the same name in two namespaces."""
    for namespace in ("north", "south"):
        gymnasium.register(f"{namespace}/Twin-v0", entry_point="nothing:Nothing")
    yield
    for namespace in ("north", "south"):
        del gymnasium.registry[f"{namespace}/Twin-v0"]


@pytest.mark.parametrize(
    ("name", "namespace", "found"),
    [
        ("cartpole", None, "CartPole-v1"),
        ("Cart-Pole", "gym", "CartPole-v1"),
        ("mountain_car", "gym", "MountainCar-v0"),
        ("mountain_car_continuous", "gym", "MountainCarContinuous-v0"),
        ("cartpole", "phys2d", "phys2d/CartPole-v1"),
        ("CartPole-v0", None, "CartPole-v1"),
        ("twin", "north", "north/Twin-v0"),
    ],
)
def test_names_are_matched_without_case_underscores_and_version(name, namespace, found):
    assert find_id(name, namespace) == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acrobat", "no Gymnasium environment has the name 'acrobat'; did you mean Acrobot-v1?"),
        ("twin", "several Gymnasium environments have the name 'twin'; did you mean north/Twin-v0, south/Twin-v0?"),
        ("zzzz", "no Gymnasium environment has the name 'zzzz'"),
    ],
)
def test_no_id_or_several_ids_are_an_error_with_similar_ids(name, message):
    with pytest.raises(UnsupportedEnvironment) as error:
        find_id(name)
    assert str(error.value) == message


def test_a_spec_has_the_reward_threshold_of_gymnasium():
    assert find_spec("CartPole-v1").reward_threshold == 475
    assert find_spec("Pendulum-v1").reward_threshold is None
