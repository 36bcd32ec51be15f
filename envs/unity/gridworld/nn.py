"""A picture of 64 x 84 pixels, and which of the signs is meant."""

from algorithm.networks import Blueprint, Mlp, Vector
