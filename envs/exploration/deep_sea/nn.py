"""One of size x size cells, one-hot; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(64, 64))
