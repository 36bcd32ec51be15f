"""Four stacked frames of 42 x 42 pixels, which are shifted at random in updates, and three convolutions."""

from algorithm.networks import Blueprint, Conv, FrameStack, RandomShift

blueprint = Blueprint(
    encoders={"*": FrameStack(4, Conv((16, 4, 2), (32, 4, 2), (32, 3, 1), units=256))},
    augmentations={"*": RandomShift(2)},
)
