"""The remaining amount, one-hot; one hidden layer."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(64))
