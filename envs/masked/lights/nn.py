"""Nine lights; two hidden layers. No network reads the mask; what is used up is dark."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(128, 128))
