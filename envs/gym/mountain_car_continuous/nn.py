"""Place and velocity, brought to mean 0 and spread 1: in its own units the velocity is a fiftieth of the place."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
