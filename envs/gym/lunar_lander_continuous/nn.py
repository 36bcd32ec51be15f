"""Position, velocity, angle and two legs, all of about one unit already; nothing shared by policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(128, 128), critic=Mlp(128, 128))
