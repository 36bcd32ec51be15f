"""Position and velocity, normalized, since velocities are about 1/50 of positions; separate policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
