"""Position, angle and their velocities, scaled; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

# Position in units of 2 m, angle in units of 0.1 rad: in rad it would be a tenth of the other values.
blueprint = Blueprint(encoders={"*": Vector(scale=(0.5, 1.0, 10.0, 1.0))}, body=Mlp(64, 64))
