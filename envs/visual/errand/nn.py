"""Convolutions for the image, the requested object as a vector, and a layer that combines both."""

from algorithm.networks import Blueprint, Conv, Mlp, Vector

blueprint = Blueprint(encoders={"picture": Conv((32, 4, 2), (32, 3, 1), units=128), "*": Vector()}, body=Mlp(128))
