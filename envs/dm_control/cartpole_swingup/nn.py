"""Position and velocity, brought to mean 0 and spread 1; nothing shared by policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(128, 128), critic=Mlp(128, 128))
