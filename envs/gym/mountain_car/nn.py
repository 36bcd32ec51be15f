"""Position and velocity, normalized; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(64, 64))
