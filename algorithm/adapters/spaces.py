"""Gymnasium's spaces as specs, and what an environment shows as named arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithm.adapters.adapter import UnsupportedEnvironment, UnsupportedObservations
from algorithm.specs import ACTION_MASK, ActionPart, ActionSpec, ObsSpec, split_observation

Obs = dict[str, np.ndarray]

OBS = "obs"  # the name of an observation that has none
MAX_EXACT_INTEGER = 2**53  # up to here every whole number has a float64 of its own
OBSERVABLE_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
SUPPORTED_SPACES = "Box, Discrete, MultiDiscrete, MultiBinary, and one Dict or Tuple of these"


class ObservationConverter:
    """The observations of `space` as float32, or uint8 for bytes, binary or one-hot; images as [channels, H, W].

    A mask among them is flat and of `branches`. Those in `ignored` are left out. Raises UnsupportedEnvironment for a
    space that is not supported, UnsupportedObservations if only some of its parts are not.
    """

    def __init__(self, space: spaces.Space, branches: tuple[int, ...], ignored: Collection[str] = ()):
        check_ignored(ignored, list_observations(space))
        leaves = {name: leaf for name, leaf in _name_spaces(space).items() if name not in ignored}
        _check_observable(leaves)
        self.specs = {name: _make_obs_spec(name, leaf, branches) for name, leaf in leaves.items()}
        if not set(self.specs) - {ACTION_MASK}:
            raise UnsupportedEnvironment(f"the observation space {space} holds nothing that an agent could see")
        self._is_single = not isinstance(space, (spaces.Dict, spaces.Tuple))
        # Looked up once: numpy takes longer to read the name of a dtype than to look at a small array.
        self._plain_dtypes = {name: np.dtype(spec.dtype) for name, spec in self.specs.items() if spec.env_shape is None}
        self._encoded_specs = {name: spec for name, spec in self.specs.items() if spec.env_shape is not None}

    def __call__(self, native: Any) -> Obs:
        """A batch as it comes from the environment. Raises ValueError, by name, for what its space does not hold."""
        arrays = {OBS: native} if self._is_single else split_observation(native, self.specs)
        obs = {name: np.asarray(arrays[name], dtype) for name, dtype in self._plain_dtypes.items()}
        return (
            obs | {name: self._encode(name, arrays[name]) for name in self._encoded_specs}
            if self._encoded_specs
            else obs
        )

    def _encode(self, name: str, native: Any) -> np.ndarray:
        try:
            return self._encoded_specs[name].encode(native)
        except ValueError as error:
            raise ValueError(f"observation {name!r}: {error}") from error


def list_observations(space: spaces.Space) -> list[str]:
    """Return the names of a space's parts, as used in settings and nn.py."""
    return list(_name_spaces(space))


def check_ignored(ignored: Iterable[str], names: Collection[str]) -> None:
    """Raise UnsupportedEnvironment for an observation to ignore that is not among `names`."""
    if absent := [name for name in ignored if name not in names]:
        raise UnsupportedEnvironment(
            f"ignore_observations: there is no observation {absent[0]!r}; there is {', '.join(dict.fromkeys(names))}"
        )


def stack_observations(observations: list) -> Any:
    """Observations of single lanes as the batch that a vector environment would give."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {name: np.stack([obs[name] for obs in observations]) for name in first}
    if isinstance(first, tuple):
        return tuple(np.stack(part) for part in zip(*observations, strict=True))
    return np.stack(observations)


def make_action_spec(space: spaces.Space, scale: float | None) -> ActionSpec:
    """What an agent does in `space`; numbers without bounds range over [-scale, scale].

    Raises UnsupportedEnvironment, naming the action, for a space that cannot be served.
    """
    spec = ActionSpec.from_parts(_make_action_part(key, leaf, scale) for key, leaf in _iterate_spaces(space))
    if not spec.size:
        raise UnsupportedEnvironment(f"the action space {space} holds nothing that an agent could choose")
    return spec


class InfoMasks:
    """Which actions each of `n_envs` may take, by what their infos tell."""

    def __init__(self, spec: ActionSpec, n_envs: int):
        self.spec, self.n_envs = spec, n_envs
        self.obs_spec = ObsSpec((sum(spec.branches),), "uint8")

    def __call__(self, info: Mapping[str, Any]) -> np.ndarray:
        """[copies, sum of branches] uint8; a copy whose info has no mask may take every action.

        Raises ValueError for a mask of another length.
        """
        masks = info.get(ACTION_MASK)
        has_mask = info.get(f"_{ACTION_MASK}")
        shape = (self.n_envs, *self.obs_spec.shape)
        if isinstance(masks, np.ndarray) and masks.shape == shape and (has_mask is None or has_mask.all()):
            return (masks > 0).astype(np.uint8)
        allowed = np.ones(shape, np.uint8)
        if masks is None:
            return allowed
        if not isinstance(masks, np.ndarray) or len(masks) != self.n_envs:
            raise ValueError(
                f"info[{ACTION_MASK!r}] is {type(masks).__name__}; it must be an array, or one for each branch"
            )
        for index in range(self.n_envs) if has_mask is None else np.flatnonzero(has_mask):
            try:
                allowed[index] = self.spec.flatten_mask(masks[index])
            except ValueError as error:
                raise ValueError(f"info[{ACTION_MASK!r}] of copy {index}: {error}") from error
        return allowed


def _name_spaces(space: spaces.Space) -> dict[str, spaces.Space]:
    return {str(place) if place is not None else OBS: leaf for place, leaf in _iterate_spaces(space)}


def _iterate_spaces(space: spaces.Space) -> Iterator[tuple[str | int | None, spaces.Space]]:
    """The parts of a Dict or Tuple with name or place, or the space itself."""
    if isinstance(space, spaces.Dict):
        for key, leaf in space.spaces.items():
            if not isinstance(key, str):
                raise UnsupportedEnvironment(f"the key {key!r} of a Dict is {type(key).__name__}; it must be text")
            yield key, leaf
    elif isinstance(space, spaces.Tuple):
        yield from enumerate(space.spaces)
    else:
        yield None, space


def _check_observable(leaves: Mapping[str, spaces.Space]) -> None:
    observed = {name: leaf for name, leaf in leaves.items() if name != ACTION_MASK}
    unsupported = {
        name: type(leaf).__name__ for name, leaf in observed.items() if not isinstance(leaf, OBSERVABLE_SPACES)
    }
    if not unsupported:
        return
    name, found = next(iter(unsupported.items()))
    message = f"observation {name!r} is {found}; supported are {SUPPORTED_SPACES}"
    if len(unsupported) == len(observed):
        raise UnsupportedEnvironment(message)
    instead = f"base_config.ignore_observations: [{', '.join(unsupported)}] leaves it out"
    raise UnsupportedObservations(f"{message}; {instead}", [*unsupported])


def _make_obs_spec(name: str, leaf: spaces.Space, branches: tuple[int, ...]) -> ObsSpec:
    if name == ACTION_MASK:
        return _make_mask_spec(leaf, branches)
    if isinstance(leaf, spaces.Discrete):
        return ObsSpec((int(leaf.n),), "uint8", (), (int(leaf.n),), (int(leaf.start),))
    if isinstance(leaf, spaces.MultiDiscrete):
        counts = _to_integers(leaf.nvec)
        return ObsSpec((sum(counts),), "uint8", leaf.shape, counts, _to_integers(leaf.start))
    assert isinstance(leaf, (spaces.Box, spaces.MultiBinary)), leaf
    is_uint8 = isinstance(leaf, spaces.MultiBinary) or leaf.dtype in (bool, np.uint8)
    high = float(max(leaf.high.max(), 1)) if isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8 else 1.0
    return ObsSpec(*_find_layout(leaf.shape, "uint8" if is_uint8 else "float32"), high=high)


def _find_layout(own: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], str, tuple[int, ...] | None]:
    """How what is of shape `own` is shown: shape, dtype, and `own` where that is another order.

    Three axes are an image, whose channels are the smaller of the first and the last, the last where they are equal.
    Two axes of bytes are one channel; two of float32, which may be a table of anything, are no image.
    """
    if not own:
        return (1,), dtype, own
    if len(own) == 2 and dtype == "uint8":
        return (1, *own), dtype, own
    if len(own) == 3 and own[-1] <= own[0]:
        return (own[-1], *own[:-1]), dtype, own
    return own, dtype, None


def _make_mask_spec(leaf: spaces.Space, branches: tuple[int, ...]) -> ObsSpec:
    size = int(np.prod(leaf.shape)) if isinstance(leaf, (spaces.Box, spaces.MultiBinary)) else None
    if not branches or size != sum(branches):
        found = type(leaf).__name__ if size is None else f"{size} numbers"
        needed = f"{' + '.join(map(str, branches))} of a Box or MultiBinary" if branches else "none without branches"
        raise UnsupportedEnvironment(
            f"observation {ACTION_MASK!r} is {found}; the discrete actions need {needed}, one for each"
        )
    return ObsSpec((sum(branches),), "uint8", None if leaf.shape == (sum(branches),) else leaf.shape)


def _make_action_part(key: str | int | None, leaf: spaces.Space, scale: float | None) -> ActionPart:
    if isinstance(leaf, spaces.Discrete):
        return ActionPart(key, (), str(leaf.dtype), n_values=(int(leaf.n),), start=(int(leaf.start),))
    if isinstance(leaf, spaces.MultiDiscrete):
        return ActionPart(
            key, leaf.shape, str(leaf.dtype), n_values=_to_integers(leaf.nvec), start=_to_integers(leaf.start)
        )
    if isinstance(leaf, spaces.MultiBinary):
        size = int(np.prod(leaf.shape))
        return ActionPart(key, leaf.shape, str(leaf.dtype), n_values=(2,) * size, start=(0,) * size)
    if isinstance(leaf, spaces.Box):
        return _make_box_part(key, leaf, scale)
    raise UnsupportedEnvironment(f"{_describe_action(key)} is {type(leaf).__name__}; supported are {SUPPORTED_SPACES}")


def _make_box_part(key: str | int | None, box: spaces.Box, scale: float | None) -> ActionPart:
    below, above = box.bounded_below, box.bounded_above
    if (below != above).any():
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box with a bound on one side only; give it both, or none"
        )
    if scale is None and not below.all():
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box without bounds; "
            "base_config.unbounded_action_limit says how far its numbers range"
        )
    low, high = np.where(below, box.low, -(scale or 0)), np.where(above, box.high, scale or 0)
    part = ActionPart(key, box.shape, str(box.dtype), _to_floats(low), _to_floats(high))
    if box.dtype.kind in "iu" and max(map(abs, part.low + part.high), default=0) > MAX_EXACT_INTEGER:
        raise UnsupportedEnvironment(
            f"{_describe_action(key)} is a Box of whole numbers beyond {MAX_EXACT_INTEGER:,}; bound it closer"
        )
    return part


def _describe_action(key: str | int | None) -> str:
    return "the action space" if key is None else f"action {key!r}"


def _to_integers(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in np.ravel(values))


def _to_floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in np.ravel(values))
