"""Position, velocity, angle and leg contacts, all of about 1; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(128, 128), critic=Mlp(128, 128))
