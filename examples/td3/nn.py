"""Separate layers for the policy and each critic, whose torsos have no layers to share."""

from algorithm.networks import Blueprint, Mlp

blueprint = Blueprint(policy=Mlp(64, 64), critic=Mlp(64, 64))
