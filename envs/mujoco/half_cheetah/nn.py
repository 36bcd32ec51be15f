"""17 places, angles and velocities, brought to mean 0 and spread 1; nothing shared by policy and critic."""

from algorithm.networks import Blueprint, Mlp, Vector


def blueprint(units: int = 128, normalize: bool = True):
    """Two hidden layers each for policy and critic."""
    layers = Mlp(units, units)
    return Blueprint(encoders={"*": Vector(normalize=normalize)}, policy=layers, critic=layers)
