"""Four stacked frames of 42 x 42 pixels, and three convolutions."""

from algorithm.networks import Blueprint, Conv, FrameStack

blueprint = Blueprint(encoders={"*": FrameStack(4, Conv((16, 4, 2), (32, 4, 2), (32, 3, 1), units=256))})
