"""Five numbers, brought to mean 0 and spread 1; nothing shared by policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
