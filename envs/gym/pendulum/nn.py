"""Cosine, sine and velocity of an angle, normalized; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(64, 64), critic=Mlp(64, 64))
