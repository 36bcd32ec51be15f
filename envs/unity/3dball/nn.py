"""Tilt of the plate, place and velocity of the ball, brought to mean 0 and spread 1."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
