"""Position, speed and goal; two hidden layers for the policy and for each critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=0.5)}, policy=Mlp(128, 128), critic=Mlp(128, 128))
