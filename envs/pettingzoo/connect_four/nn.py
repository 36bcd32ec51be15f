"""Two convolutions over the board of 6 x 7 cells, and a layer of 256 units."""

from algorithm.networks import Blueprint, Conv, Mlp

blueprint = Blueprint(encoders={"observation": Conv((64, 3, 1), (64, 3, 1), units=None)}, body=Mlp(256))
