"""Four stacked frames of 42 x 42 pixels, shifted at random, three convolutions, and a linear layer with layer norms."""

from algorithm.networks import Blueprint, Conv, FrameStack, Mlp, RandomShift

blueprint = Blueprint(
    encoders={"*": FrameStack(4, Conv((24, 4, 2), (48, 4, 2), (48, 3, 1), units=None))},
    critic=Mlp(512, norm="layer"),
    augmentations={"*": RandomShift(2)},
)
