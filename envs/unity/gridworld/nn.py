"""The picture through convolutions, which sign is meant beside it, and a layer that brings the two together."""

from algorithm.networks import Blueprint, Conv, Mlp, Vector

camera = Conv((16, 8, 4), (32, 4, 2), units=128)
blueprint = Blueprint(encoders={"*Camera*": camera, "*Texture*": camera, "*": Vector()}, body=Mlp(128))
