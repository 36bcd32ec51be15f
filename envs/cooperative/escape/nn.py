"""The observation as a vector, and a layer of 64 units; the critic of POCA attends to all scouts that are present."""

from algorithm.networks import Blueprint, Mlp

blueprint = Blueprint(body=Mlp(64))
