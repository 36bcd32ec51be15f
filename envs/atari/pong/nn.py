"""Four stacked frames of 42 x 42 pixels, three convolutions, and a linear layer with layer norms around it."""

from algorithm.networks import Blueprint, Conv, FrameStack, Mlp

blueprint = Blueprint(
    encoders={"*": FrameStack(4, Conv((16, 4, 2), (32, 4, 2), (32, 3, 1), units=None))}, body=Mlp(256, norm="layer")
)
