"""Conversion of every space of Gymnasium, and of action masks in observations and infos."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from algorithm.adapters.adapter import EnvironmentCrashed, UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.spaces import AgentSpaces, make_action_spec
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec
from tests.adapters.configs import config, every_mode, open_gym, vectorized
from tests.adapters.contract import drive, make_contract, random_actions
from tests.adapters.counted import TRUNCATED
from tests.adapters.spaced import BRANCHES, Masked, Sampling, allowed

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x")  # of Gymnasium, for spaces of shape ()
PLAIN, BUTTON = spaces.Box(0, 1), spaces.Discrete(2)


def read_spaces(space) -> AgentSpaces:
    """Return the conversion of the observations in a space, for an agent without discrete actions."""
    return AgentSpaces(space, PLAIN, config("any"), list)


def box(low, high, shape, dtype) -> spaces.Box:
    """Return a Box whose bounds differ from value to value."""
    offsets = np.arange(np.prod(shape)).reshape(shape)
    return spaces.Box((low + offsets).astype(dtype), (high + offsets).astype(dtype), shape, dtype)


LEAVES = [
    spaces.Discrete(1),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 1, 2], start=[-4, 0, 5]),
    spaces.MultiDiscrete([[2, 3], [4, 1]], dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
    spaces.MultiBinary((3, 2, 1)),
    box(-1.25, 2.5, (), np.float32),
    box(-20, 30.5, (3,), np.float16),
    box(0.5, 0.5, (2, 3), np.float64),
    box(-9, 9, (3, 2, 2), np.float32),
    box(-20, 39, (2, 3), np.int8),
    box(0, 60, (2,), np.int64),
    box(0, 99, (3, 1), np.uint8),
    box(0, 40, (3, 2, 3), np.uint8),
    box(5, 40, (1, 2, 3), np.uint8),
]
DICT = spaces.Dict({f"part {n}": LEAVES[n] for n in (12, 1, 7, 5, 3)})
TUPLE = spaces.Tuple([LEAVES[n] for n in (4, 8, 2, 14)])
every_space = pytest.mark.parametrize("space", [*LEAVES, DICT, TUPLE], ids=str)


def leaves(space, value):
    """Return triples (name, leaf, its value) of a space and a value in it, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return [(key, leaf, value[key]) for key, leaf in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return [(str(index), *pair) for index, pair in enumerate(zip(space.spaces, value, strict=True))]
    return [("obs", space, value)]


def bounds(leaf):
    """Return the smallest and the largest value in a space without parts."""
    if isinstance(leaf, spaces.Box):
        return leaf.low, leaf.high
    if isinstance(leaf, spaces.MultiBinary):
        return 0, 1
    return leaf.start, leaf.start + (leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec) - 1


# Actions


@every_space
def test_every_action_is_in_the_environments_space_and_reaches_its_bounds(space):
    spec = make_action_spec(space, None)
    low = np.concatenate([np.full(spec.continuous, -1), np.zeros(len(spec.branches))])
    high = np.concatenate([np.ones(spec.continuous), np.array(spec.branches) - 1])
    rows = np.stack([low, high, *random_actions(spec, 6, np.random.default_rng(0))]).astype(np.float32)
    actions = list(iterate(batch_space(space, 8), spec.to_env_units(rows)))
    assert len(actions) == 8 and all(space.contains(action) for action in actions), (space, actions)
    for (_, leaf, least), (_, _, most) in zip(*(leaves(space, action) for action in actions[:2]), strict=True):
        for value, bound in zip((least, most), bounds(leaf), strict=True):
            np.testing.assert_array_equal(value, np.broadcast_to(bound, leaf.shape))


def test_continuous_values_come_first_and_every_part_gets_its_values():
    space = spaces.Dict(
        {
            "a": spaces.Discrete(4, start=10),
            "b": spaces.Box(np.array([0, -2], np.float32), np.array([8, 2], np.float32)),
            "c": spaces.MultiBinary(2),
            "d": spaces.Box(0, 10, (), np.int64),
        }
    )
    spec = make_action_spec(space, None)
    assert (spec.continuous, spec.branches, spec.size) == (3, (4, 2, 2), 6)
    env_action = spec.to_env_units(np.array([[-1, 0.5, 1, 3, 1, 0], [0, 0, -0.45, 0, 0, 1]], np.float32))
    assert {key: (value.dtype.name, value.tolist()) for key, value in env_action.items()} == {
        "a": ("int64", [13, 10]),
        "b": ("float32", [[0, 1], [4, 0]]),
        "c": ("int8", [[1, 0], [0, 1]]),
        "d": ("int64", [10, 3]),
    }


def test_dimensions_without_bounds_have_the_range_of_the_limit():
    mixed = spaces.Box(np.array([-np.inf, 1], np.float32), np.array([np.inf, 2], np.float32))
    env_action = make_action_spec(mixed, 3.5).to_env_units(np.array([[-1, -1], [1, 1], [0, 0]], np.float32))
    assert env_action.tolist() == [[-3.5, 1], [3.5, 2], [0, 1.5]]


def test_actions_without_parts_are_not_converted():
    assert ActionSpec(branches=(3,)).to_env_units(np.array([[2.0], [0.0]], np.float32)).tolist() == [2, 0]
    action = np.array([[0.5, 1.0]], np.float32)
    assert ActionSpec(continuous=1, branches=(2,)).to_env_units(action) is action


def test_specs_are_formatted_in_one_line():
    space = spaces.Tuple([spaces.Box(-2, 2, (3,)), spaces.MultiDiscrete([3, 2])])
    assert str(make_action_spec(space, None)) == "0: [3] float32 from -2 to 2; 1: one of 3 x one of 2"
    assert str(ActionSpec(1, (4,))) == "1 numbers from -1 to 1; one of 4"


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("space", [DICT, TUPLE], ids=["Dict", "Tuple"])
def test_composed_actions_reach_the_environment(space, how):
    adapter = open_gym(Sampling, 2, {"observation_space": space, "action_space": space, **vectorized(how)})
    drive(adapter, 6, action=None)
    assert adapter.restarts == 0


# Observations


def expected(leaf, value) -> np.ndarray:
    """Return the expected conversion of one observation."""
    if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
        counts = np.ravel(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec)
        index = np.ravel(value - leaf.start)
        return np.concatenate([np.eye(n, dtype=np.uint8)[i] for n, i in zip(counts, index, strict=True)])
    dtype = np.uint8 if isinstance(leaf, spaces.MultiBinary) or leaf.dtype == np.uint8 else np.float32
    value = np.asarray(value, dtype).reshape(leaf.shape or (1,))
    if value.ndim == 2 and dtype == np.uint8:
        return value[None]
    return np.moveaxis(value, -1, 0) if value.ndim == 3 and leaf.shape[-1] <= leaf.shape[0] else value


@every_space
def test_every_observation_is_encoded(space):
    space.seed(0)
    observations = read_spaces(space)
    specs = observations.role.obs_specs
    samples = [space.sample() for _ in range(5)]
    converted = observations(concatenate(space, samples, create_empty_array(space, 5)), [])
    assert set(converted) == set(specs)
    for row, value in enumerate(samples):
        for name, leaf, part in leaves(space, value):
            spec, right = specs[name], expected(leaf, part)
            assert (spec.shape, spec.dtype, spec.effective_env_shape) == (right.shape, right.dtype.name, leaf.shape)
            np.testing.assert_array_equal(converted[name][row], right)
            assert converted[name].dtype == right.dtype
            np.testing.assert_array_equal(spec.encode(np.asarray(part)[None])[0], right)


def test_an_observation_outside_its_space_is_an_error_with_its_name():
    observations = read_spaces(spaces.Tuple([PLAIN, spaces.Discrete(3, start=1)]))
    for wrong in (0, 4):
        message = f"'any' crashed: ValueError: observation '1': {wrong} is not one of the integers from 1 to 3"
        with pytest.raises(EnvironmentCrashed, match=message):
            observations((np.zeros((2, 1)), np.array([1, wrong])), [])


@pytest.mark.parametrize(
    ("leaf", "right"),
    [
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), ObsSpec((4, 84, 84), "uint8", env_shape=(84, 84, 4), high=255)),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), ObsSpec((4, 84, 84), "uint8", high=255)),
        (spaces.Box(0, 255, (84, 84), np.uint8), ObsSpec((1, 84, 84), "uint8", env_shape=(84, 84), high=255)),
        (spaces.Box(0, 9, (5, 4, 5), np.uint8), ObsSpec((5, 5, 4), "uint8", env_shape=(5, 4, 5), high=9)),
        (spaces.Box(0, 0, (2, 2), np.uint8), ObsSpec((1, 2, 2), "uint8", env_shape=(2, 2))),
        (spaces.Box(0, 1, (10, 10, 4), bool), ObsSpec((4, 10, 10), "uint8", env_shape=(10, 10, 4))),
        (spaces.MultiBinary((3, 6, 6)), ObsSpec((3, 6, 6), "uint8")),
        (spaces.Box(-1, 1, (8, 9, 3)), ObsSpec((3, 8, 9), env_shape=(8, 9, 3))),
        (spaces.Box(0, 255, (8, 9)), ObsSpec((8, 9))),
        (spaces.Box(0, 255, (128,), np.uint8), ObsSpec((128,), "uint8", high=255)),
        (spaces.Box(0, 1, (3,), bool), ObsSpec((3,), "uint8")),
        (spaces.Box(0, 255, (4, 84, 84, 3), np.uint8), ObsSpec((4, 84, 84, 3), "uint8", high=255)),
    ],
    ids=str,
)
def test_images_are_recognized_by_their_shape(leaf, right):
    assert read_spaces(leaf).role.obs_specs == {"obs": right}


def test_images_and_bytes_are_not_copied():
    shapes = {"last": (5, 6, 3), "flat": (5, 6), "plain": (2,)}
    space = spaces.Dict({name: spaces.Box(0, 255, shape, np.uint8) for name, shape in shapes.items()})
    env_obs = {name: np.zeros((2, *shape), np.uint8) for name, shape in shapes.items()}
    obs = read_spaces(space)(env_obs, [])
    assert all(np.shares_memory(obs[name], env_obs[name]) for name in env_obs)


@every_mode
@pytest.mark.parametrize("space", [LEAVES[1], DICT, TUPLE], ids=["Discrete", "Dict", "Tuple"])
def test_every_mode_returns_the_same_episodes(space, mode):
    """Final observations are stacked from single ones in SAME_STEP, and are a batch in the other modes."""
    adapter = open_gym(Sampling, 1, {"observation_space": space, "action_space": BUTTON, **vectorized("sync", mode)})
    steps = drive(adapter, 7, seed=7)
    assert [bool(step.is_bootstrap_row[0]) for step in steps] == [False, False, False, True] * 2
    space.seed(7)
    for step in steps:
        for name, leaf, part in leaves(space, space.sample()):
            np.testing.assert_array_equal(step.obs[name], expected(leaf, part)[None])


# Masks


def assert_masks(adapter: GymAdapter, ticks: int, find_mask=lambda number, first: allowed(number)) -> None:
    """Check the mask of every row, which the observed number and the start of an episode determine."""
    steps = drive(adapter, ticks, seed=3, action=None)
    assert {final for step in steps for final in step.is_bootstrap_row.tolist()} == {True, False}
    for step in steps:
        assert step.obs[ACTION_MASK].dtype == np.uint8
        number = next(value for name, value in step.obs.items() if name != ACTION_MASK)[:, 0]
        right = [find_mask(*row) for row in zip(number, step.first, strict=True)]
        np.testing.assert_array_equal(step.obs[ACTION_MASK], np.reshape(right, (-1, 5)))


@every_mode
@pytest.mark.parametrize(
    ("how", "breaks_at"),
    [("flat", None), ("bool", None), ("split", None), ("binary", None), ("box", None), ("flat", 9)],
)
def test_every_row_has_its_own_mask(how, breaks_at, mode):
    adapter = open_gym(Masked, 3, vectorized("sync", mode, how=how, breaks_at=breaks_at))
    assert adapter.roles["agent"].obs_specs[ACTION_MASK] == ObsSpec((5,), "uint8")
    assert_masks(adapter, 60)
    assert (adapter.restarts > 2) == (breaks_at is not None)  # a rebuilt environment continues with masks


def test_worker_processes_return_the_same_masks():
    assert_masks(open_gym(Masked, 2, vectorized("async", AutoresetMode.SAME_STEP, how="split")), 40)


@every_mode
def test_without_a_mask_every_action_is_allowed(mode):
    adapter = open_gym(Masked, 3, vectorized("sync", mode, how="starts"))
    assert_masks(adapter, 60, lambda number, first: allowed(number) if first else [1] * 5)


TestMasked = make_contract(lambda: GymAdapter(config(Masked, 3, vectorized("sync", AutoresetMode.SAME_STEP))))
TestMaskedDisabled = make_contract(
    lambda: GymAdapter(config(Masked, 3, vectorized("sync", AutoresetMode.DISABLED, how="binary")))
)


SAMPLED = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, ()), spaces.MultiBinary(2)])
SAMPLED_ARGS = {"observation_space": SAMPLED, "action_space": SAMPLED}
TestSampledTuple = make_contract(
    lambda: GymAdapter(config(Sampling, 3, vectorized("sync", AutoresetMode.SAME_STEP, **SAMPLED_ARGS)))
)


def test_a_mask_is_flat_or_one_array_for_each_branch():
    spec = ActionSpec(branches=BRANCHES)
    for mask in ([1, 0, 1, 0, 1], np.array([1, 0, 1, 0, 1], bool), ([1, 0, 1], [0, 1]), (np.array([2, 0, 1]), (0, 1))):
        assert spec.flatten_mask(mask).tolist() == [1, 0, 1, 0, 1]
    assert spec.flatten_mask(None).tolist() == [1] * 5
    for mask in ([1, 0], ([1, 0], [1, 0, 1]), np.ones(6), (), ([1, 0, 1],)):
        with pytest.raises(ValueError, match="numbers, but the branches have 3 and 2 actions"):
            spec.flatten_mask(mask)


def test_masks_of_some_environments_apply_to_these_only():
    adapter = open_gym(Masked, 3)
    some = np.array([False, True, False])
    for masks in (np.array([None, [0, 1, 1, 0, 1], None], object), np.array([[0] * 5, [0, 1, 1, 0, 1], [0] * 5])):
        info = {ACTION_MASK: masks, f"_{ACTION_MASK}": some}
        obs = adapter._spaces(np.zeros((3, 1), np.float32), adapter._list_masks(info))
        assert obs[ACTION_MASK].tolist() == [[1] * 5, [0, 1, 1, 0, 1], [1] * 5]
    of_all = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 1, 0], [1, 1, 0, 0, 1]])
    obs = adapter._spaces(np.zeros((3, 1), np.float32), adapter._list_masks({ACTION_MASK: of_all}))
    np.testing.assert_array_equal(obs[ACTION_MASK], of_all)
    with pytest.raises(UnsupportedEnvironment, match="info\\['action_mask'\\] is dict"):
        adapter._list_masks({ACTION_MASK: {"gear": np.ones((3, 2))}})


def test_masks_after_the_reset_only_are_an_error():
    adapter = open_gym(Masked, 1, {"ends": ((2, TRUNCATED),), "how": "steps"})
    with pytest.raises(UnsupportedEnvironment, match="with a step but not with its first reset"):
        drive(adapter, 1)


# Environments of Gymnasium


@pytest.mark.parametrize(
    ("name", "shapes", "continuous", "branches"),
    [
        ("pendulum", {"obs": (3,)}, 1, ()),
        ("blackjack", {"0": (32,), "1": (11,), "2": (2,)}, 0, (2,)),
        ("taxi", {"obs": (500,), ACTION_MASK: (6,)}, 0, (6,)),
        ("cliff_walking", {"obs": (48,)}, 0, (4,)),
        ("frozen_lake", {"obs": (16,)}, 0, (4,)),
    ],
)
def test_environments_of_gymnasium_are_supported(name, shapes, continuous, branches):
    adapter = open_gym(find_id(name), 2, vectorized("sync", AutoresetMode.SAME_STEP), max_episode_steps=9)
    role = adapter.roles["agent"]
    assert {name: spec.shape for name, spec in role.obs_specs.items()} == shapes
    assert (role.action_spec.continuous, role.action_spec.branches) == (continuous, branches)
    for step in drive(adapter, 25, action=None):
        assert {name: value.shape[1:] for name, value in step.obs.items()} == shapes
