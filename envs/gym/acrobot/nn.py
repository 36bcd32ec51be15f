"""Two angles as cosines and sines, and their velocities: on these depends which way to push, from the start."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=(1.0, 1.0, 1.0, 1.0, 3.0, 1.5))}, body=Mlp(64, 64))
