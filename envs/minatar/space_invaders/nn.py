"""A convolution for the image of 10 x 10 cells: cannon, aliens, their direction, and bullets."""

from algorithm.networks import Blueprint, Conv

blueprint = Blueprint(encoders={"*": Conv((16, 3, 1), units=128)})
