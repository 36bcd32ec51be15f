"""The board of 3 x 3 cells as a vector, and two layers of 128 units."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"observation": Vector()}, body=Mlp(128, 128))
