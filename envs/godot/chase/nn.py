"""Position and velocity of the runner, and the way to the target; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(64, 64), critic=Mlp(64, 64))
