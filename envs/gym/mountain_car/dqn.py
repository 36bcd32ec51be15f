"""Position and velocity, normalized; two hidden layers of the critics."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, critic=Mlp(128, 128))
