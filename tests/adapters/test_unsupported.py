"""Configurations that an adapter does not support, or whose package is missing, are errors of one line.

The line names the setting, or what to do.
"""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import NamespaceNotFound

from algorithm import program
from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.atari import AtariAdapter
from algorithm.adapters.dm_control import DmControlAdapter
from algorithm.adapters.env_errors import make_missing_error
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.pettingzoo import PettingZooAdapter
from algorithm.adapters.probe import ProbeAdapter
from tests.adapters.configs import config
from tests.adapters.counted import CountedEpisodes, Raising, Ticks
from tests.adapters.spaced import Masked, Sampling
from tests.missing_packages import run_without

PACKAGES = {
    AtariAdapter: ("ale_py", "cv2"),
    DmControlAdapter: ("dm_control", "shimmy"),
    PettingZooAdapter: ("pettingzoo", "pygame"),
}
CLIP, TIME = ("gymnasium.wrappers:ClipReward", {}), ("gymnasium.wrappers:TimeAwareObservation", {})
PLAIN, BUTTON = spaces.Box(0, 1), spaces.Discrete(2)
PARTS = {"words": spaces.Text(5), "place": spaces.Discrete(3), "sight": spaces.Box(-1, 1, (2,))}
WORDS = {"observation_space": spaces.Dict(PARTS), "action_space": BUTTON}
ONE_SIDED = {"observation_space": PLAIN, "action_space": spaces.Box(0, np.inf)}


def assert_unsupported(adapter_class, env_config, message):
    for package in PACKAGES.get(adapter_class, ()):
        pytest.importorskip(package)
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        adapter_class(env_config)
    assert "\n" not in str(error.value)


NAMES = [
    (GymAdapter, "not an id", "'not an id'"),
    (GymAdapter, "Unheard-v0", "'Unheard-v0'.* If importing a module registers it, name the module: MODULE:Unheard-v0"),
    (GymAdapter, "unheard/Of-v0", "If importing a module registers it, name the module: MODULE:unheard/Of-v0"),
    (GymAdapter, "MiniGrid-Unheard-v0", "Its module registers it: use minigrid:MiniGrid-Unheard-v0"),
    (GymAdapter, "unheard_of:Any-v0", "'unheard_of:Any-v0'.* No module named 'unheard_of'; pip install unheard_of"),
    (GymAdapter, "CartPole-v9", r"'CartPole-v9'.* It provides versioned environments: \[ `v0`, `v1` \]\.$"),
    (GymAdapter, "ALE/Pong-v5", "'ALE/Pong-v5' needs env_type ATARI: set base_config.env_type"),
    (GymAdapter, "dm_control/walker-run-v0", "'dm_control/walker-run-v0' needs env_type DM_CONTROL: set base_config"),
    (AtariAdapter, "Pnog", "no Gymnasium environment has the name 'Pnog'; did you mean"),
    (AtariAdapter, "Pong-v4", "'Pong-v4' is not one of the ids ALE/...-v5"),
    (AtariAdapter, "PongNoFrameskip-v4", "'PongNoFrameskip-v4' is not one of the ids"),
    (AtariAdapter, "CartPole", "'CartPole' is not one of the ids"),
    (AtariAdapter, lambda: None, "env_type ATARI needs a name"),
    (DmControlAdapter, "cartpole-swingip", "'cartpole-swingip' is not a task .* did you mean cartpole-swingup"),
    (DmControlAdapter, "cartpole", "'cartpole' is not a task"),
    (DmControlAdapter, lambda: None, "env_type DM_CONTROL needs a name"),
    (PettingZooAdapter, "sisl/multiwalkr_v9", "is not an environment of PettingZoo; did you mean sisl/multiwalker"),
    (PettingZooAdapter, "no_such_module:make", "a package: No module named 'no_such_module'; pip install no_such"),
    (PettingZooAdapter, "tests.adapters.parallel:no", "tests.adapters.parallel has no function or class 'no'"),
    (PettingZooAdapter, lambda: object(), "cannot be opened: TypeError: object is not an environment"),
    (ProbeAdapter, "corridor", "'corridor'.*truncation.*chain"),
]


@pytest.mark.parametrize(("adapter_class", "name", "message"), NAMES)
def test_an_unknown_name_is_an_error(adapter_class, name, message):
    assert_unsupported(adapter_class, config(name), message)


MODE = "vectorization_mode"
ENVPOOL, NATIVE = {MODE: "envpool"}, {MODE: "vector_entry_point"}
ARGUMENTS = [
    ({"frameskip": 4}, "unknown setting env_args.frameskip; ATARI has frame_skip, full_action_space, "),
    ({"grayscale_newaxis": True}, "unknown setting env_args.grayscale_newaxis; ATARI has"),
    ({"noop_max": "many"}, "env_args.noop_max is 'many'; its default is 30"),
    ({"noop_max": True}, "env_args.noop_max is True; its default is 30"),
    ({"scale_obs": 1}, "env_args.scale_obs is 1; its default is False"),
    ({"screen_size": [84]}, r"env_args.screen_size is \[84\]; its default is 84"),
    ({MODE: "threads"}, "'threads' is not one of sync, async, vector_entry_point, envpool"),
    ({"vector_kwargs": {"autoreset_mode": "SameStep"}}, "autoreset_mode is for sync and async"),
    ({**ENVPOOL, "noop_max": 0}, "EnvPool does not support noop_max 0"),
]


@pytest.mark.parametrize(("env_args", "message"), ARGUMENTS)
def test_an_argument_that_atari_does_not_support_is_an_error(env_args, message):
    assert_unsupported(AtariAdapter, config("Pong", 1, env_args), message)


SETTINGS = [
    (AtariAdapter, "Pong", {"timeout": 3.0}, "env_timeout is 3, but only worker processes"),
    (DmControlAdapter, "cartpole-swingup", {"args": ENVPOOL}, "'envpool' is neither sync nor async"),
    (GymAdapter, Raising, {"timeout": 1.0}, "vectorization_mode to async"),
    # Vector environments of an env.py.
    (GymAdapter, lambda num_envs: CountedEpisodes(), {}, "VectorEnv of 3 environments; it returned CountedEpisodes"),
    (GymAdapter, lambda num_envs: Ticks(2), {}, r"make\(num_envs=3\) .* must return .* it returned a VectorEnv of 2"),
    (GymAdapter, lambda: Ticks(3), {}, "returns a VectorEnv: return a single environment, .* a parameter num_envs"),
    (GymAdapter, Ticks, {"max_episode_steps": 5}, "a VectorEnv limits its own episodes; add a parameter max_ep"),
    (GymAdapter, Ticks, {"timeout": 1.0}, "env_timeout is 1"),
    (GymAdapter, Ticks, {"wrappers": [CLIP]}, "and a VectorEnv of env.py has none"),
    (
        GymAdapter,
        "CartPole-v1",
        {"args": NATIVE, "wrappers": [TIME]},
        "TimeAware.* and vectorization_mode vector_entry",
    ),
    *(
        (GymAdapter, "CartPole-v1", {"wrappers": [wrapper]}, message)
        for wrapper, message in [
            (("gymnasium.wrappers:Nothing", {}), "env_wrappers: gymnasium.wrappers has no function or class 'Nothing'"),
            (("no_such:Wrapper", {}), "env_wrappers: no_such:Wrapper needs a package: No .*; pip install no_such$"),
            (("gymnasium.wrapers:ClipReward", {}), "No module named 'gymnasium.wrapers'$"),
            (("gymnasium.wrappers:ClipReward", {"most": 1}), "gymnasium.wrappers:ClipReward: TypeError: .*'most'"),
            (("gymnasium.wrappers:GrayscaleObservation", {}), "gymnasium.wrappers:GrayscaleObservation: "),
        ]
    ),
    (GymAdapter, Sampling, {"args": WORDS, "ignore_observations": ["sound"]}, "'sound'; .* has place, sight, words$"),
    (GymAdapter, Sampling, {"args": WORDS, "ignore_observations": list(PARTS)}, "contains no observation for an agent"),
    (GymAdapter, Sampling, {"args": ONE_SIDED, "unbounded_action_limit": 2.0}, "one side only"),
    (GymAdapter, Masked, {"args": {"how": "short"}}, r"info\['action_mask'\]: the mask has 4 numbers, but"),
    *(
        (PettingZooAdapter, "tests.adapters.parallel:Race", {"args": {"how": "observed"}, **ignored}, message)
        for ignored, message in [
            (
                {"ignore_observations": ["sound"]},
                "no observation 'sound'; the environment has action_mask, observation$",
            ),
            ({"ignore_observations": ["observation"]}, "contains no observation for an agent"),
        ]
    ),
]


@pytest.mark.parametrize(("adapter_class", "name", "settings", "message"), SETTINGS)
def test_a_setting_that_an_environment_does_not_support_is_an_error(adapter_class, name, settings, message):
    assert_unsupported(adapter_class, config(name, 3, **settings), message)


UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,))
DEEP, GEARS = spaces.Dict({"in": spaces.Dict({"a": PLAIN})}), spaces.MultiDiscrete([3, 2])


def with_mask(mask) -> spaces.Dict:
    return spaces.Dict({"a": PLAIN, "action_mask": mask})


SPACES = [
    (spaces.Text(5), BUTTON, "observation 'obs' is Text; supported are Box, Discrete"),
    (spaces.Dict({"words": spaces.Text(5)}), BUTTON, "observation 'words' is Text"),
    (DEEP, BUTTON, "observation 'in' is Dict; supported are .* one Dict or Tuple"),
    (spaces.Tuple([PLAIN, spaces.Tuple([PLAIN])]), BUTTON, "observation '1' is Tuple"),
    (spaces.Sequence(PLAIN), BUTTON, "observation 'obs' is Sequence"),
    (spaces.Dict({"g": spaces.Graph(PLAIN, None)}), BUTTON, "observation 'g' is Graph"),
    (spaces.OneOf([PLAIN, BUTTON]), BUTTON, "observation 'obs' is OneOf"),
    (spaces.Dict({}), BUTTON, "contains no observation for an agent"),
    (spaces.Dict({"action_mask": spaces.MultiBinary(2)}), BUTTON, "contains no observation for an agent"),
    (PLAIN, spaces.Text(5), "the action space is Text; supported are"),
    (PLAIN, DEEP, "action 'in' is Dict"),
    (PLAIN, spaces.Tuple([BUTTON, spaces.Sequence(PLAIN)]), "action 1 is Sequence"),
    (PLAIN, spaces.OneOf([PLAIN, BUTTON]), "the action space is OneOf"),
    (PLAIN, spaces.Tuple([]), "contains no action for an agent"),
    (PLAIN, UNBOUNDED, "the action space is a Box without bounds; set base_config.unbounded_action_limit to"),
    (PLAIN, spaces.Dict({"gas": UNBOUNDED}), "action 'gas' is a Box without bounds; set base_config.unbounded_action"),
    (PLAIN, spaces.Dict({"gas": spaces.Box(0, np.inf)}), "action 'gas' is a Box with a bound on one side only"),
    (PLAIN, spaces.Tuple([spaces.Box(0, 2**60, dtype=np.int64)]), "action 0 is a Box of integers beyond"),
    (with_mask(PLAIN), BUTTON, "'action_mask' is Box of 1 values; .* need a Box or MultiBinary of 2 values"),
    (with_mask(spaces.MultiBinary(6)), GEARS, r"is MultiBinary of 6 values; the discrete .* need .* of 3 \+ 2 values"),
    (with_mask(spaces.Discrete(2)), BUTTON, "'action_mask' is Discrete"),
    (with_mask(PLAIN), PLAIN, "'action_mask' needs an action space with discrete actions"),
]


@pytest.mark.parametrize(("observation", "action", "message"), SPACES)
def test_an_unsupported_space_is_an_error_with_its_key(observation, action, message):
    args = {"observation_space": observation, "action_space": action}
    assert_unsupported(GymAdapter, config(Sampling, 1, args), message)


OPEN = """
from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.config.registry import find_class

try:
    find_class("env_type", {env_type!r})(EnvConfig(name={env_name!r}, args={args}))
except UnsupportedEnvironment as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "env_name", "env_type", "how", "extra", "needed"),
    [
        ("mujoco", "HalfCheetah-v5", "GYM", "", "mujoco", ""),
        ("imageio", "gymnasium:InvertedPendulum-v5", "GYM", "", "mujoco", ""),
        ("Box2D", "LunarLander-v3", "GYM", "", "box2d", ""),
        ("ale_py", "Pong", "ATARI", "", "atari", ""),
        ("cv2", "ALE/Pong-v5", "ATARI", "sync", "atari", "ale_py"),
        ("envpool", "ALE/Pong-v5", "ATARI", "envpool", "envpool", "ale_py"),
        ("envpool", "CartPole-v1", "GYM", "envpool", "envpool", ""),
        ("shimmy", "cartpole-swingup", "DM_CONTROL", "", "dm-control", "dm_control"),
        ("dm_control", "cartpole-swingup", "DM_CONTROL", "", "dm-control", ""),
        ("mujoco", "cartpole-swingup", "DM_CONTROL", "", "dm-control", "dm_control"),
        ("pettingzoo", "classic/rps_v2", "PETTINGZOO", "", "pettingzoo", ""),
        ("minatar", "minatar.gym:MinAtar/Breakout-v1", "GYM", "", "minatar", ""),
        ("minigrid", "minigrid:MiniGrid-DoorKey-5x5-v0", "GYM", "", "minigrid", ""),
        ("pybullet_envs_gymnasium", "pybullet_envs_gymnasium:HopperBulletEnv-v0", "GYM", "", "pybullet", ""),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra(package, env_name, env_type, how, extra, needed):
    if needed:
        pytest.importorskip(needed)
    args = {"vectorization_mode": how} if how else {}
    message = run_without(package, OPEN.format(env_type=env_type, env_name=env_name, args=args))
    start, _, end = message.partition(" (No module named ")
    name = f"dm_control/{env_name}" if env_type == "DM_CONTROL" else env_name
    assert start == f"the environment {name!r} needs the extra {extra}"
    assert end.endswith(f'): pip install -e ".[{extra}]"')
    assert "\n" not in end


@pytest.mark.parametrize(("is_checkout", "package"), [(True, '-e ".[minatar]"'), (False, '"samara-rl[minatar]"')])
def test_a_missing_namespace_is_an_error_with_its_extra(is_checkout, package, monkeypatch):
    """If MinAtar is not installed, it has no entry point."""
    monkeypatch.setattr(program, "IS_CHECKOUT", is_checkout)
    error = make_missing_error("MinAtar/Breakout-v1", NamespaceNotFound("Namespace MinAtar not found."))
    assert str(error).endswith(f"needs the extra minatar (Namespace MinAtar not found.): pip install {package}")
