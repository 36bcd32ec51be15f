"""Position, velocity, angle and two legs, all of about one unit already; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(128, 128))
