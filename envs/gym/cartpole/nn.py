"""Four numbers in, two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

# Place in units of 2 m, angle in tenths of a radian: in its own units the angle is a tenth of the other numbers.
blueprint = Blueprint(encoders={"*": Vector(scale=(0.5, 1.0, 10.0, 1.0))}, body=Mlp(64, 64))
