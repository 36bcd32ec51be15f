"""Two angles as cosines and sines, and their velocities: which way to push depends on these from the first update on."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=(1.0, 1.0, 1.0, 1.0, 3.0, 1.5))}, body=Mlp(64, 64))
