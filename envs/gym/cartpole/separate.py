"""Four numbers in, two hidden layers each for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=(0.5, 1.0, 10.0, 1.0))}, policy=Mlp(64, 64), critic=Mlp(64, 64))
