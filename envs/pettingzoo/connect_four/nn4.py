"""A convolution of 4 x 4 cells, in which each line of four cells is, and a layer of 256 units."""

from algorithm.networks import Blueprint, Conv, Mlp

blueprint = Blueprint(encoders={"observation": Conv((96, 4, 1), units=None)}, critic=Mlp(256, norm="layer"))
