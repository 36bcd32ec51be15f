"""Convolutions for the camera image, the goal sign as a vector, and a layer that combines both."""

from algorithm.networks import Blueprint, Conv, Mlp, Vector

camera = Conv((16, 8, 4), (32, 4, 2), units=128)
blueprint = Blueprint(encoders={"*Camera*": camera, "*Texture*": camera, "*": Vector()}, body=Mlp(128))
