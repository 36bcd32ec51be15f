"""Wrappers and ignored observations of the settings."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from algorithm.adapters.adapter import UnsupportedEnvironment, UnsupportedObservations
from algorithm.adapters.vector import NATIVE_MIN_ENVS, apply_wrappers
from tests.adapters.configs import open_gym
from tests.adapters.contract import drive
from tests.adapters.counted import Raising
from tests.adapters.spaced import Sampling

REWARD = ("gymnasium.wrappers:ClipReward", {"max_reward": 0.25})
TIME = ("gymnasium.wrappers:TimeAwareObservation", {})
RESIZE = ("gymnasium.wrappers:ResizeObservation", {"shape": [6, 5]})
PARTS = {"words": spaces.Text(5), "place": spaces.Discrete(3), "sight": spaces.Box(-1, 1, (2,))}
PICTURE = spaces.Box(0, 255, (12, 10, 3), np.uint8)


def open_sampling(space, how="sync", **others):
    args = {"observation_space": space, "action_space": spaces.Discrete(2), "vectorization_mode": how}
    return open_gym(Sampling, 2, args, **others)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_every_single_environment_is_wrapped(how):
    adapter = open_gym("CartPole-v1", 2, {"vectorization_mode": how}, wrappers=[REWARD, TIME])
    assert adapter.roles["agent"].obs_specs["obs"].shape == (5,)
    step = drive(adapter, 1)[-1]
    np.testing.assert_array_equal(step.obs["obs"][:, 4], [1, 1])
    np.testing.assert_array_equal(step.reward, [0.25, 0.25])


def test_the_last_wrapper_is_the_outermost():
    env = apply_wrappers(gymnasium.make("CartPole-v1"), [REWARD, TIME])
    assert [type(env).__name__, type(env.env).__name__] == ["TimeAwareObservation", "ClipReward"]


def test_images_are_resized_and_turned_gray_with_shapes_as_yaml_writes_them():
    pytest.importorskip("cv2")
    adapter = open_sampling(PICTURE, wrappers=[RESIZE, ("gymnasium.wrappers:GrayscaleObservation", {})])
    spec = adapter.roles["agent"].obs_specs["obs"]
    assert (spec.shape, spec.dtype, spec.high) == ((1, 6, 5), "uint8", 255)
    assert adapter.reset(seed=0)["agent"].obs["obs"].shape == (2, 1, 6, 5)


def test_a_rebuilt_environment_is_wrapped_again():
    adapter = open_gym(Raising, 1, {"ends": ((99, "truncated"),), "at": 3, "culprit": 5}, 50, wrappers=[TIME])
    assert drive(adapter, 6, seed=5)[-1].obs["obs"].shape == (1, 2)
    assert adapter.restarts == 1


def test_wrapped_environments_are_not_native():
    assert isinstance(open_gym("CartPole-v1", NATIVE_MIN_ENVS, wrappers=[TIME]).env, SyncVectorEnv)


def test_a_missing_package_of_a_wrapper_is_an_error_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UnsupportedEnvironment, match=r"ResizeObservation needs the extra atari \(.*cv2"):
        open_sampling(PICTURE, wrappers=[RESIZE])


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
    adapter = open_sampling(space, how, ignore_observations=ignored)
    assert set(adapter.roles["agent"].obs_specs) == left
    assert set(adapter.reset(seed=0)["agent"].obs) == left


def test_unsupported_parts_are_an_error_with_the_setting_that_ignores_them():
    space = spaces.Dict({**PARTS, "graph": spaces.Graph(PARTS["sight"], None)})
    advice = r"base_config.ignore_observations: \[graph, words\] leaves"
    with pytest.raises(UnsupportedObservations, match=advice) as error:
        open_sampling(space)
    assert error.value.names == ("graph", "words")
