"""Three values of about 1; two hidden layers each for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(64, 64), critic=Mlp(64, 64))
