"""Angles, height, positions of the limbs and velocities; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Vector, make_layers


def blueprint(units: int = 256, critic_units: int | None = None, kind: str = "plain") -> Blueprint:
    """Return the network, whose layers are those of `make_layers`; the critics have as many units by default."""
    encoders = {"*": Vector()}
    return Blueprint(encoders, policy=make_layers(kind, units), critic=make_layers(kind, critic_units or units))
