"""Nine lights; two hidden layers. Networks do not read the mask: a light that is used up is dark."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, body=Mlp(128, 128))
