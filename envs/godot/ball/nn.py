"""Tilt of the plate, position and velocity of the ball; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(64, 64), critic=Mlp(64, 64))
