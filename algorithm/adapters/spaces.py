"""Conversion of Gymnasium's spaces to specs, and of an environment's observations to named arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithm.adapters.adapter import EnvConfig, EnvironmentCrashed, UnsupportedEnvironment, UnsupportedObservations
from algorithm.adapters.entities import EntityBox
from algorithm.adapters.env_errors import describe_error, get_env_name
from algorithm.specs import ACTION_MASK, ActionPart, ActionSpec, ObsSpec, Role, split_observation

Obs = dict[str, np.ndarray]
Masks = Sequence[Any] | np.ndarray  # the mask in the info of each row; None for an info without one
Key = str | int | None  # the name of a part in a Dict, its index in a Tuple, None for a space without parts

OBS = "obs"  # the name of the observation of a space without parts
MAX_EXACT_INTEGER = 2**53  # the largest integer up to which float64 represents all integers exactly
OBSERVABLE_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
SUPPORTED_SPACES = "Box, Discrete, MultiDiscrete, MultiBinary, and one Dict or Tuple of these"


def name_spaces(space: spaces.Space) -> dict[str, spaces.Space]:
    """Return a space's parts by their names in settings and nn.py."""
    return {str(key) if key is not None else OBS: leaf for key, leaf in _iterate_spaces(space)}


def check_ignored(ignored: Iterable[str], names: Collection[str]) -> None:
    """Raise UnsupportedEnvironment for an observation to ignore that is not among `names`."""
    if absent := [name for name in ignored if name not in names]:
        raise UnsupportedEnvironment(
            f"ignore_observations: there is no observation {absent[0]!r}; "
            f"the environment has {', '.join(dict.fromkeys(names))}"
        )


def stack_observations(observations: list[Any]) -> Any:
    """Stack observations of single environments to a batch, as a vector environment returns it."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {name: np.stack([obs[name] for obs in observations]) for name in first}
    if isinstance(first, tuple):
        return tuple(np.stack(part) for part in zip(*observations, strict=True))
    return np.stack(observations)


def make_action_spec(space: spaces.Space, unbounded_limit: float | None) -> ActionSpec:
    """Return the spec of the actions in `space`.

    Args:
        space: The action space.
        unbounded_limit: Dimensions without bounds have the range [-unbounded_limit, unbounded_limit].

    Raises:
        UnsupportedEnvironment: The space is not supported, or contains no action.
    """
    spec = ActionSpec.from_parts(_make_action_part(key, leaf, unbounded_limit) for key, leaf in _iterate_spaces(space))
    if not spec.size:
        raise UnsupportedEnvironment(f"the action space {space} contains no action for an agent")
    return spec


class AgentSpaces:
    """The role that an agent's spaces describe, and the conversion of its observations with their masks.

    Observations become named arrays, float32 or uint8, with images as [channels, H, W]. They are uint8 if they are
    bytes, binary or one-hot. A mask is flat.

    Args:
        observation_space: The observation space.
        action_space: The action space.
        config: The configuration of the adapter, whose `ignore_observations` are all in the space.
        read_masks: Returns the masks in the infos of a reset, for actions without a mask in the observation.

    Raises:
        UnsupportedEnvironment: A space is not supported, contains no observation, or a mask has the wrong length.
        UnsupportedObservations: Some parts of the observation space are not supported, others are.
    """

    def __init__(self, observation_space: Any, action_space: Any, config: EnvConfig, read_masks: Callable[[], Masks]):
        self._name = get_env_name(config.name)
        self._action_spec = make_action_spec(action_space, config.unbounded_action_limit)
        specs = _make_obs_specs(observation_space, self._action_spec.branches, config.ignore_observations)
        # Conversion from a dtype's name takes numpy longer than the conversion of a small array.
        self._plain_dtypes = {name: np.dtype(spec.dtype) for name, spec in specs.items() if spec.env_shape is None}
        self._encoded_specs = {name: spec for name, spec in specs.items() if spec.env_shape is not None}
        self._names = tuple(specs)
        self._may_have_masks = bool(self._action_spec.branches) and ACTION_MASK not in specs
        masks = read_masks() if self._may_have_masks else ()
        self._has_masks = any(mask is not None for mask in masks)
        if self._has_masks:
            specs[ACTION_MASK] = ObsSpec((sum(self._action_spec.branches),), "uint8")
            try:
                self._flatten_masks(masks)
            except ValueError as error:
                raise UnsupportedEnvironment(f"the environment {self._name!r}: {error}") from error
        self.role = Role(config.n_envs, specs, self._action_spec)

    def __call__(self, env_obs: Any, masks: Masks) -> Obs:
        """Convert a batch of observations, or a list of single ones, with the masks in their infos.

        Raises:
            EnvironmentCrashed: A value is outside the space.
            UnsupportedEnvironment: Infos have masks, but those of the first reset had none.
        """
        try:
            obs = self._convert(stack_observations(env_obs) if isinstance(env_obs, list) else env_obs)
            if self._has_masks:
                obs[ACTION_MASK] = self._flatten_masks(masks)
        except (KeyError, ValueError) as error:
            raise EnvironmentCrashed(describe_error(self._name, "crashed", error)) from error
        if self._may_have_masks and not self._has_masks and any(mask is not None for mask in masks):
            raise UnsupportedEnvironment(
                f"the environment {self._name!r} returned info[{ACTION_MASK!r}] with a step but not with its first "
                "reset; return it with every reset and every step"
            )
        return obs

    def _convert(self, env_obs: Any) -> Obs:
        """Return the arrays of a batch of the environment's observations; a plain one is not copied."""
        parts = split_observation(env_obs, self._names)
        obs = {name: np.asarray(parts[name], dtype) for name, dtype in self._plain_dtypes.items()}
        for name, spec in self._encoded_specs.items():
            try:
                obs[name] = spec.encode(parts[name])
            except ValueError as error:
                raise ValueError(f"observation {name!r}: {error}") from error
        return obs

    def _flatten_masks(self, masks: Masks) -> np.ndarray:
        """Return masks [n, sum of branches] uint8. Raises ValueError for a mask of the wrong length."""
        if isinstance(masks, np.ndarray) and masks.shape == (len(masks), sum(self._action_spec.branches)):
            return (masks > 0).astype(np.uint8)
        try:
            return np.stack([self._action_spec.flatten_mask(mask) for mask in masks])
        except ValueError as error:
            raise ValueError(f"info[{ACTION_MASK!r}]: {error}") from error


def _iterate_spaces(space: spaces.Space) -> Iterator[tuple[Key, spaces.Space]]:
    """Yield the parts of a Dict or Tuple with their keys, or the space itself."""
    if isinstance(space, spaces.Dict):
        for key, leaf in space.spaces.items():
            if not isinstance(key, str):
                raise UnsupportedEnvironment(f"the key {key!r} of a Dict is {type(key).__name__}; it must be text")
            yield key, leaf
    elif isinstance(space, spaces.Tuple):
        yield from enumerate(space.spaces)
    else:
        yield None, space


def _make_obs_specs(space: spaces.Space, branches: tuple[int, ...], ignored: Collection[str]) -> dict[str, ObsSpec]:
    """Return the specs of all observations that are not ignored; `branches` are for the check of a mask."""
    leaves = name_spaces(space)
    check_ignored(ignored, leaves)
    leaves = {name: leaf for name, leaf in leaves.items() if name not in ignored}
    observed = [name for name in leaves if name != ACTION_MASK]
    unsupported = [name for name in observed if not isinstance(leaves[name], OBSERVABLE_SPACES)]
    if unsupported:
        found = type(leaves[unsupported[0]]).__name__
        message = f"observation {unsupported[0]!r} is {found}; supported are {SUPPORTED_SPACES}"
        if isinstance(leaves[unsupported[0]], spaces.Sequence):
            message += ", and a Sequence in the wrapper algorithm.adapters.entities:PadEntities (env_wrappers)"
        if len(unsupported) == len(observed):
            raise UnsupportedEnvironment(message)
        advice = f"base_config.ignore_observations: [{', '.join(unsupported)}] leaves it out"
        raise UnsupportedObservations(f"{message}; {advice}", unsupported)
    if not observed:
        raise UnsupportedEnvironment(f"the observation space {space} contains no observation for an agent")
    return {name: _make_obs_spec(name, leaf, branches) for name, leaf in leaves.items()}


def _make_obs_spec(name: str, leaf: spaces.Space, branches: tuple[int, ...]) -> ObsSpec:
    if name == ACTION_MASK:
        return _make_mask_spec(leaf, branches)
    if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
        counts, start = _read_integers(leaf)
        return ObsSpec(shape=(sum(counts),), dtype="uint8", env_shape=leaf.shape, n_values=counts, start=start)
    assert isinstance(leaf, (spaces.Box, spaces.MultiBinary)), leaf
    is_uint8 = isinstance(leaf, spaces.MultiBinary) or leaf.dtype in (bool, np.uint8)
    high = float(max(leaf.high.max(), 1)) if isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8 else 1.0
    shape, env_shape = _find_layout(leaf.shape, is_uint8)
    rows = leaf.shape[0] if isinstance(leaf, EntityBox) else 0
    return ObsSpec(shape=shape, dtype="uint8" if is_uint8 else "float32", env_shape=env_shape, high=high, rows=rows)


def _find_layout(env_shape: tuple[int, ...], is_uint8: bool) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of an observation, and the environment's shape if the two differ, otherwise None.

    Three axes are an image, whose channels are the smaller of the first and the last axis, the last if they are equal.
    Two axes of bytes are an image of one channel. Two axes of float32 may be any table, so they are no image.
    """
    if not env_shape:
        return (1,), env_shape
    if len(env_shape) == 2 and is_uint8:
        return (1, *env_shape), env_shape
    if len(env_shape) == 3 and env_shape[-1] <= env_shape[0]:
        return (env_shape[-1], *env_shape[:-1]), env_shape
    return env_shape, None


def _make_mask_spec(leaf: spaces.Space, branches: tuple[int, ...]) -> ObsSpec:
    n_values = sum(branches)
    size = int(np.prod(leaf.shape)) if isinstance(leaf, (spaces.Box, spaces.MultiBinary)) else None
    if not branches:
        raise UnsupportedEnvironment(f"observation {ACTION_MASK!r} needs an action space with discrete actions")
    if size != n_values:
        found = type(leaf).__name__ if size is None else f"{type(leaf).__name__} of {size} values"
        raise UnsupportedEnvironment(
            f"observation {ACTION_MASK!r} is {found}; the discrete actions need a Box or MultiBinary of "
            f"{' + '.join(map(str, branches))} values"
        )
    return ObsSpec(shape=(n_values,), dtype="uint8", env_shape=None if leaf.shape == (n_values,) else leaf.shape)


def _make_action_part(key: Key, leaf: spaces.Space, unbounded_limit: float | None) -> ActionPart:
    if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
        counts, start = _read_integers(leaf)
        return ActionPart(key=key, shape=leaf.shape or (), dtype=str(leaf.dtype), n_values=counts, start=start)
    if isinstance(leaf, spaces.MultiBinary):
        size = int(np.prod(leaf.shape))
        return ActionPart(key=key, shape=leaf.shape, dtype=str(leaf.dtype), n_values=(2,) * size, start=(0,) * size)
    if isinstance(leaf, spaces.Box):
        return _make_box_part(key, leaf, unbounded_limit)
    raise UnsupportedEnvironment(f"{_describe_action(key)} is {type(leaf).__name__}; supported are {SUPPORTED_SPACES}")


def _make_box_part(key: Key, box: spaces.Box, unbounded_limit: float | None) -> ActionPart:
    below, above = box.bounded_below, box.bounded_above
    if (below != above).any():
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box with a bound on one side only; give it both bounds, or none"
        )
    if unbounded_limit is None and not below.all():
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box without bounds; set base_config.unbounded_action_limit to its limit"
        )
    limit = unbounded_limit or 0
    bounds = np.where(below, box.low, -limit), np.where(above, box.high, limit)
    low, high = (tuple(bound.ravel().astype(float).tolist()) for bound in bounds)
    part = ActionPart(key=key, shape=box.shape, dtype=str(box.dtype), low=low, high=high)
    if box.dtype.kind in "iu" and max(map(abs, part.low + part.high), default=0) > MAX_EXACT_INTEGER:
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box of integers beyond {MAX_EXACT_INTEGER:,}; give it smaller bounds"
        )
    return part


def _describe_action(key: Key) -> str:
    return "the action space" if key is None else f"action {key!r}"


def _read_integers(leaf: spaces.Discrete | spaces.MultiDiscrete) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of values of each integer, and the smallest value of each."""
    counts = leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec
    return tuple(np.ravel(counts).astype(int).tolist()), tuple(np.ravel(leaf.start).astype(int).tolist())
