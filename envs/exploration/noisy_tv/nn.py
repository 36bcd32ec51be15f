"""A cell, one-hot, and the pixels of the screen; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(64, 64))
