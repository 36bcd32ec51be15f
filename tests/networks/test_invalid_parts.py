"""Invalid parts of a blueprint are rejected in one line, which names the part."""

from __future__ import annotations

import pytest
from torch import nn

from algorithm.distributions import make_flattened_family
from algorithm.networks import (
    ActorCritic,
    Attention,
    Blueprint,
    BranchedActorCritic,
    Chain,
    Conv,
    Entities,
    FrameStack,
    Gru,
    ImpalaResNet,
    Mlp,
    NatureCnn,
    NoisyMlp,
    OneHot,
    RandomShift,
    Residual,
    Torso,
    UnitSphere,
    Vector,
)
from algorithm.specs import ObsSpec
from tests.builders import make_acer
from tests.fakes import RunningSum

ONE, SMALL = {"obs": ObsSpec((3,))}, ObsSpec((2, 6, 7), "uint8", high=255)
IMAGE = {"image": SMALL, "vector": ObsSpec((3,))}


class NoForward(nn.Module):
    """A module that is neither layers nor a memory."""

    size = 3

    def __init__(self, size: int):
        super().__init__()


def make_network(**parts) -> ActorCritic:
    return ActorCritic(Blueprint(**parts), ONE, 2, 2)


def make_branched(**parts) -> BranchedActorCritic:
    return BranchedActorCritic(Blueprint(**parts), ONE, make_flattened_family((3,)), 2, 1.0, 0.0)


def shift_images(**augmentations) -> Torso:
    return Torso(Blueprint(augmentations=augmentations), IMAGE)


def refuse_full_trust_region(layers) -> None:
    make_acer(blueprint=Blueprint(body=layers), trust_region="full")


CHANGING = "does not support batch norms, unit weights or spectral norms"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv(), "at least one layer"),
        (lambda: Conv((16, 3)), r"layer \(16, 3\); a layer is \(channels, kernel, stride\)"),
        (lambda: Conv((16, 3, 0)), r"layer \(16, 3, 0\)"),
        (lambda: Conv(16, 3, 1), "layer 16;"),
        (lambda: Conv((16, 3, 1), activation="gelu"), "'gelu' is unknown; there are relu, tanh"),
        (lambda: NatureCnn()(ObsSpec((4, 35, 84), "uint8")), r"35, 84\] is too small for NatureCnn: layer 3 .* 2 x 9"),
        (lambda: Conv((1, 3, 1))(ObsSpec((5, 2, 9))), r"is too small for Conv: layer 1 has an input of 2 x 9 .* of 3"),
        (lambda: Conv((1, 3, 1))(ObsSpec((9,))), r"\[9\] is not an image \[channels, rows, columns\]"),
        (lambda: ImpalaResNet(()), "at least one stage"),
        (lambda: ImpalaResNet()(ObsSpec((4, 84, 84, 3))), r"\[4, 84, 84, 3\] is not an image"),
        (lambda: Mlp(), "Mlp needs the units of at least one layer"),
        (lambda: Mlp(8, activation="gelu"), "'gelu' is unknown; there are relu, tanh"),
        (lambda: Mlp(8, norm="group"), "Mlp has the norm 'group'"),
        (lambda: NoisyMlp(), "NoisyMlp needs the units"),
        (lambda: NoisyMlp(8, activation="swish"), "activation 'swish' is unknown"),
        (lambda: NoisyMlp(8, std=0.0), "std is 0.0; it must be above 0"),
        (lambda: Residual(0), "Residual has the size 0"),
        (lambda: Residual(8, norm="group"), "Residual has the norm 'group'; there are batch, batch_renorm, layer, rms"),
        (lambda: Residual(8, norm=None, unit_weights=True), "unit_weights without a norm"),
        (lambda: Residual(8, unit_weights=True, spectral_norm=True), "give one or the other"),
        (lambda: UnitSphere(0.0), "shift is 0.0; it must be above 0"),
        (lambda: Chain(), "Chain needs at least one factory"),
        (lambda: refuse_full_trust_region(Residual(8)), CHANGING),
        (lambda: refuse_full_trust_region(Residual(8, norm="rms", unit_weights=True)), CHANGING),
        (lambda: refuse_full_trust_region(Mlp(8, spectral_norm=True)), CHANGING),
        (lambda: RandomShift(0), "a shift of 0 pixels; it must be an integer, at least 1"),
        (lambda: RandomShift(1.5), "a shift of 1.5 pixels; it must be an integer"),
        (lambda: RandomShift(True), "a shift of True pixels; it must be an integer"),
        (lambda: RandomShift(6)(SMALL), r"an image \[2, 6, 7\] is too small for a shift of up to 6 pixels"),
        (lambda: shift_images(**{"*": RandomShift(1)}), r"shifts images .*, not an observation \[3\]; name the"),
        (lambda: shift_images(picture=RandomShift(1)), r"of 'picture', but the observations are \['image', 'vector'\]"),
        (
            lambda: make_acer(blueprint=Blueprint(augmentations={"*": lambda spec: abs}), trust_region="full"),
            "trust_region full does not support augmentations.*use trust_region efficient",
        ),
        (lambda: OneHot(), "at least one channel"),
        (lambda: OneHot(3, 0), "OneHot has the size 0"),
        (lambda: OneHot(11, 6)(ObsSpec((3, 2, 2))), r"OneHot has 2 channels for an observation \[3, 2, 2\] of 3"),
        (lambda: Attention(10, heads=4), "must divide"),
        (lambda: Attention(8, window=1), "at least 2"),
        (lambda: Attention(8, layers=0), "at least 1"),
        (lambda: Attention(8, positions="learned"), "positions 'learned'; use distance, absolute or rotary"),
        (lambda: Attention(6, heads=2, positions="rotary"), "rotary positions of 3 values; their number must be even"),
        (lambda: Entities(10, heads=4), "must divide"),
        (lambda: Entities(8)(ObsSpec((3,))), r"an observation \[3\] has no rows of entities"),
        (lambda: FrameStack(1, Vector()), "at least 2"),
        (
            lambda: make_acer(blueprint=Blueprint({"*": FrameStack(4, Vector())}), burn_in_step=3),
            "burn_in_step is 3, but the network has no memory",
        ),
        (lambda: Vector(normalize=True, scale=0.5), "scale 0.5 and normalize: give one or the other"),
        (lambda: Vector(normalize=True, scale=(1.0, 2.0)), "give one or the other"),
        (lambda: Vector(normalize=True, clip=0.0), "clip is 0.0; it must be above 0"),
        (lambda: Vector(normalize=True, clip=float("nan")), "must be above 0"),
        (lambda: Vector((1.0, 2.0))(ObsSpec((4,))), "2 scales for an observation of 4 values"),
        (lambda: Torso(Blueprint({"im*": Vector(), "v": Vector()}), IMAGE), r"'vector'.*\['im\*', 'v'\]"),
    ],
)
def test_invalid_arguments_and_observations_are_rejected(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("make", [make_network, make_branched])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"body": Gru(4)}, "Gru made a GruMemory, which has no `forward`.*; a memory goes into memory=, and only R"),
        ({"policy": int}, "int made a value of type int; it must make a torch module"),
        ({"critic": NoForward}, "NoForward made a NoForward, which has no `forward` and does not fit here$"),
        ({"memory": Mlp(4)}, "Mlp made a LayerStack, which has no `step` and does not fit here$"),
        ({"encoders": {"*": lambda spec: None}}, "<lambda> made a value of type NoneType; it must make a torch module"),
        ({"augmentations": {"*": lambda spec: None}}, "type NoneType; it must make a function of observations"),
    ],
)
def test_a_module_that_does_not_fit_its_part_is_rejected(make, parts, message):
    with pytest.raises(TypeError, match=message) as raised:
        make(**parts)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("part", ["policy", "critic"])
def test_only_a_branched_network_has_memories_after_the_torso(part):
    with pytest.raises(TypeError, match="RunningSum made a RunningSum, which has no `forward`"):
        make_network(**{part: RunningSum})
    assert make_branched(**{part: RunningSum}).stored_state_size == 3


def test_further_arguments_are_given_by_name():
    assert Attention(8) == Attention(units=8, heads=4, window=16, layers=1, positions="distance", gate=False)
    encoders = {"*": Vector()}
    assert Blueprint(encoders, body=None) == Blueprint(encoders=encoders)
    for make in (lambda: Attention(8, 2), lambda: Blueprint(encoders, Mlp(4))):
        with pytest.raises(TypeError, match="positional argument"):
            make()
