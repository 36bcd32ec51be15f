"""The Blueprint that an nn.py fills in, and the contracts of the modules that its factories make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from algorithm.networks.encoders import Vector
from algorithm.specs import ObsSpec


class Encoder(Protocol):
    """A torch module that maps the observations of one name [rows, *shape] to features [rows, size]."""

    size: int

    def __call__(self, obs: Tensor, /) -> Tensor: ...


class Layers(Protocol):
    """A torch module that maps features [..., F] to features [..., size]."""

    size: int

    def __call__(self, features: Tensor, /) -> Tensor: ...


class Memory(Protocol):
    """A torch module that carries a float32 state [B, state_size] from row to row and puts out features of `size`."""

    size: int
    state_size: int

    def step(self, features: Tensor, memory: Tensor, /) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], state [B, state_size] -> features [B, size], next state."""

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor, /) -> tuple[Tensor, Tensor]:
        """Map T rows: features [T, B, F], first [T, B], state before row 0 -> features [T, B, size], last state.

        The state is zero at a row where `first` is True, the first row of an episode.
        """


EncoderFactory = Callable[[ObsSpec], Encoder]
Augmentation = Callable[[Tensor], Tensor]  # observations [rows, *shape] -> the same shape and dtype
AugmentationFactory = Callable[[ObsSpec], Augmentation]
LayersFactory = Callable[[int], Layers]  # the argument is the size of the input
MemoryFactory = Callable[[int], Memory]  # the argument is the size of the input
BranchFactory = LayersFactory | MemoryFactory  # a memory only where an agent supports it


@dataclass(frozen=True)
class Blueprint:
    """A description of a network, from which an agent builds its policy, critics and target networks.

    Observations are encoded, concatenated, and passed through `body` and `memory`, which policy and critic share;
    `policy` and `critic` are separate layers before their outputs. Without body, policy and critic layers, the
    outputs are linear in the encoded observations.

    Example: `Blueprint({"image": NatureCnn(), "*": Vector()}, body=Mlp(128), memory=Gru(64))`.

    An encoder may keep running statistics (RunningMoments): its `observe(obs [n, *shape])` is called once with every
    collected row. The statistics are saved with the network and shared with its target networks.

    An augmentation changes the observations that a network learns from at random, before their encoder. Each forward
    pass over a batch, also of a target network, calls it with its rows. Acting, evaluation, export and the running
    statistics use the observations as they are.

    Args:
        encoders: Encoder factories by a pattern of observation names, as in a file name ("*" matches every name); an
            observation uses the first pattern that matches. Default: `Vector()` for every observation.
        augmentations: Augmentation factories by a pattern of observation names, such as `{"image": RandomShift(4)}`; an
            observation that no pattern matches is not augmented. Default: none.
        body: Factory of the layers after the encoders, such as `Mlp(64, 64)`; None: no layers.
        memory: Factory of the memory after the body, such as `Gru(64)`; None: no memory.
        policy: Factory of layers, or for Reactor of a memory, for the policy only; None: no layers.
        critic: Factory of layers, or for Reactor of a memory, for the critic only; None: no layers.
    """

    encoders: Mapping[str, EncoderFactory] = field(default_factory=lambda: {"*": Vector()})
    _: KW_ONLY
    augmentations: Mapping[str, AugmentationFactory] = field(default_factory=dict)
    body: LayersFactory | None = None
    memory: MemoryFactory | None = None
    policy: BranchFactory | None = None
    critic: BranchFactory | None = None


def build_module(factory: Callable[[Any], object], argument: ObsSpec | int, *methods: str) -> Any:
    """Return the module that a factory of a blueprint makes.

    The type is Any, since nn.Module declares neither `size` nor the methods of a memory.

    Args:
        factory: The factory.
        argument: The argument of the factory: the spec of an observation, or the size of the input.
        methods: The methods that the module must have; without any, it must be layers or a memory.

    Raises:
        TypeError: The result is not a torch module, or lacks a method.
    """
    module = factory(argument)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{name_factory(factory)} made a value of type {type(module).__name__}; it must make a torch module"
        )
    for method in methods or ("forward",) * (not is_memory(module)):
        if not _has_method(module, method):
            hint = "; a memory goes into memory=, and only Reactor supports one in policy= and critic="
            raise TypeError(
                f"{name_factory(factory)} made a {type(module).__name__}, which has no `{method}` "
                f"and does not fit here{hint if is_memory(module) else ''}"
            )
    return module


def is_memory(module: nn.Module) -> bool:
    """Return whether a module has the methods of a memory."""
    return _has_method(module, "step") and _has_method(module, "unroll")


def _has_method(module: nn.Module, name: str) -> bool:
    return getattr(type(module), name, None) not in (None, nn.Module.forward)


def name_factory(factory: object) -> str:
    """Return the name of a factory for messages."""
    return getattr(factory, "__name__", type(factory).__name__)
