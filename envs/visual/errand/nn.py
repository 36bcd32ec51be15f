"""The picture through convolutions, what is asked for beside it, and a layer that brings the two together."""

from algorithm.networks import Blueprint, Conv, Mlp, Vector

blueprint = Blueprint(encoders={"picture": Conv((32, 4, 2), (32, 3, 1), units=128), "*": Vector()}, body=Mlp(128))
