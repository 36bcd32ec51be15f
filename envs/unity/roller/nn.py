"""Places of ball and box and the ball's velocity, brought to mean 0 and spread 1."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
