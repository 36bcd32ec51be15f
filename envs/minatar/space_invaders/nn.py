"""A picture of 10 x 10: cannon, aliens, which way they go and bullets."""

from algorithm.networks import Blueprint, Conv

blueprint = Blueprint(encoders={"*": Conv((16, 3, 1), units=128)})
