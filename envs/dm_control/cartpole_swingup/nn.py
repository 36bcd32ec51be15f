"""Position and velocity, normalized; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(128, 128), critic=Mlp(128, 128))
