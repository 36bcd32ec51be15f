"""Position and velocity, normalized but for residual layers; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Vector, make_layers


def blueprint(units: int = 128, kind: str = "plain") -> Blueprint:
    """Return the network, whose layers are those of `make_layers`."""
    encoders = {"*": Vector(normalize=kind != "residual")}
    return Blueprint(encoders, policy=make_layers(kind, units), critic=make_layers(kind, units))
