"""Cosines and sines of two angles, and their velocities, scaled; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=(1.0, 1.0, 1.0, 1.0, 3.0, 1.5))}, body=Mlp(64, 64))
