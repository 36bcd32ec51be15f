"""Position, angle and their velocities, scaled; one hidden layer and a GRU."""

from algorithm.networks import Blueprint, Gru, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(scale=(0.5, 1.0, 10.0, 1.0))}, body=Mlp(64), memory=Gru(64))
