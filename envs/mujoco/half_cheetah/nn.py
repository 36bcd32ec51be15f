"""17 positions, angles and velocities, normalized; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector


def blueprint(units: int = 128, normalize: bool = True) -> Blueprint:
    """Return the network: two hidden layers of `units` each for policy and critic."""
    layers = Mlp(units, units)
    return Blueprint(encoders={"*": Vector(normalize=normalize)}, policy=layers, critic=layers)
