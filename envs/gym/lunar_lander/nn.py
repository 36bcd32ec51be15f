"""Position, velocity, angle and leg contacts, all of about 1; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(128, 128))
