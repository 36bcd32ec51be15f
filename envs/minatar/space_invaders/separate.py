"""The same convolution, and a hidden layer each for policy and critic."""

from algorithm.networks import Blueprint, Conv, Mlp

blueprint = Blueprint(encoders={"*": Conv((16, 3, 1), units=128)}, policy=Mlp(128), critic=Mlp(128))
