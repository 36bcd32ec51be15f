"""17 positions, angles and velocities; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(256, 256), critic=Mlp(256, 256))
