"""Wrappers and ignored observations of the settings."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from algorithm.adapters.adapter import UnsupportedEnvironment, UnsupportedObservations
from algorithm.adapters.env_wrappers import apply_wrappers
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.vector import NATIVE_MIN_ENVS
from tests.adapters.configs import config
from tests.adapters.counted import Raising
from tests.adapters.spaced import Sampling

REWARD = ("gymnasium.wrappers:ClipReward", {"max_reward": 0.25})
TIME = ("gymnasium.wrappers:TimeAwareObservation", {})
PICTURE = spaces.Box(0, 255, (12, 10, 3), np.uint8)


def sampling(space, **others):
    return config(Sampling, 2, {"observation_space": space, "action_space": spaces.Discrete(2)}, **others)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_every_single_environment_is_wrapped(how):
    adapter = GymAdapter(config("CartPole-v1", 2, {"vectorization_mode": how}, wrappers=[REWARD, TIME]))
    assert adapter.roles["agent"].obs_specs["obs"].shape == (5,)
    adapter.reset(seed=0)
    step = adapter.step({"agent": np.zeros((2, 1), np.float32)})["agent"]
    np.testing.assert_array_equal(step.obs["obs"][:, 4], [1, 1])
    np.testing.assert_array_equal(step.reward, [0.25, 0.25])
    adapter.close()


def test_the_last_wrapper_is_the_outermost():
    env = apply_wrappers(gymnasium.make("CartPole-v1"), [REWARD, TIME])
    assert [type(env).__name__, type(env.env).__name__] == ["TimeAwareObservation", "ClipReward"]


def test_images_are_resized_and_turned_gray_with_shapes_as_yaml_writes_them():
    pytest.importorskip("cv2")
    wrappers = [
        ("gymnasium.wrappers:ResizeObservation", {"shape": [6, 5]}),
        ("gymnasium.wrappers:GrayscaleObservation", {}),
    ]
    adapter = GymAdapter(sampling(PICTURE, wrappers=wrappers))
    spec = adapter.roles["agent"].obs_specs["obs"]
    assert (spec.shape, spec.dtype, spec.high) == ((1, 6, 5), "uint8", 255)
    assert adapter.reset(seed=0)["agent"].obs["obs"].shape == (2, 1, 6, 5)


def test_a_rebuilt_environment_is_wrapped_again():
    adapter = GymAdapter(config(Raising, 1, {"ends": ((99, "truncated"),), "at": 3, "culprit": 5}, 50, wrappers=[TIME]))
    adapter.reset(seed=5)
    for _ in range(6):
        step = adapter.step({"agent": np.zeros((1, 1), np.float32)})["agent"]
    assert adapter.restarts == 1
    assert step.obs["obs"].shape == (1, 2)


def test_native_vector_environments_and_probes_reject_wrappers():
    assert isinstance(GymAdapter(config("CartPole-v1", NATIVE_MIN_ENVS, wrappers=[TIME])).env, SyncVectorEnv)
    with pytest.raises(
        UnsupportedEnvironment, match="TimeAwareObservation.* and vectorization_mode vector_entry_point"
    ):
        GymAdapter(config("CartPole-v1", 2, {"vectorization_mode": "vector_entry_point"}, wrappers=[TIME]))


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (("gymnasium.wrappers:Nothing", {}), "env_wrappers: gymnasium.wrappers has no function or class 'Nothing'"),
        (
            ("no_such_module:Wrapper", {}),
            "env_wrappers: no_such_module:Wrapper: ModuleNotFoundError: .*; pip install no_s",
        ),
        (("gymnasium.wrapers:ClipReward", {}), "No module named 'gymnasium.wrapers'$"),
        (("gymnasium.wrappers:ClipReward", {"most": 1}), "gymnasium.wrappers:ClipReward: TypeError: .*'most'"),
        (("gymnasium.wrappers:GrayscaleObservation", {}), "gymnasium.wrappers:GrayscaleObservation: "),
    ],
)
def test_an_unsuitable_wrapper_is_an_error_of_one_line(wrapper, message):
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        GymAdapter(config("CartPole-v1", wrappers=[wrapper]))
    assert "\n" not in str(error.value)


def test_a_missing_package_of_a_wrapper_has_the_name_that_pip_uses(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(UnsupportedEnvironment, match="pip install opencv-python-headless$"):
        GymAdapter(sampling(PICTURE, wrappers=[("gymnasium.wrappers:ResizeObservation", {"shape": [6, 5]})]))


PARTS = {"words": spaces.Text(5), "place": spaces.Discrete(3), "sight": spaces.Box(-1, 1, (2,))}


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    ("space", "ignored", "left"),
    [
        (spaces.Dict(PARTS), ["words"], {"place", "sight"}),
        (spaces.Dict(PARTS), ["words", "place"], {"sight"}),
        (spaces.Tuple(list(PARTS.values())), ["0"], {"1", "2"}),
    ],
)
def test_observations_are_ignored_by_name(space, ignored, left, how):
    args = {"observation_space": space, "action_space": spaces.Discrete(2), "vectorization_mode": how}
    adapter = GymAdapter(config(Sampling, 1, args, ignore_observations=ignored))
    assert set(adapter.roles["agent"].obs_specs) == left
    assert set(adapter.reset(seed=0)["agent"].obs) == left
    adapter.close()


def test_unsupported_parts_are_an_error_with_the_setting_that_ignores_them():
    space = spaces.Dict({**PARTS, "graph": spaces.Graph(PARTS["sight"], None)})
    with pytest.raises(
        UnsupportedObservations, match=r"base_config.ignore_observations: \[graph, words\] leaves"
    ) as error:
        GymAdapter(sampling(space))
    assert error.value.names == ("graph", "words")


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        (["sound"], "ignore_observations: there is no observation 'sound'; the environment has place, sight, words"),
        (["place", "sight", "words"], "contains no observation for an agent"),
    ],
)
def test_ignored_names_must_exist_and_leave_an_observation(ignored, message):
    with pytest.raises(UnsupportedEnvironment, match=message):
        GymAdapter(sampling(spaces.Dict(PARTS), ignore_observations=ignored))
