"""A view of 7 x 7 cells, each with an object, a color and a state as codes; two hidden layers."""

from algorithm.networks import Blueprint, Mlp, OneHot, Vector

blueprint = Blueprint(encoders={"image": OneHot(11, 6, 3), "*": Vector()}, body=Mlp(64, 64))
