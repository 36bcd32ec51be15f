"""Attention among entities, and two layers of 64 units; or the padded rows as a vector of the same size of layers."""

from algorithm.networks import Blueprint, Entities, Mlp, Vector


def blueprint(encoder: str = "entities"):
    """Return the network; `nn_config.encoder` is entities or vector."""
    if encoder == "vector":
        return Blueprint(encoders={"*": Vector()}, body=Mlp(128, 128))
    return Blueprint(encoders={"*": Entities(64)}, body=Mlp(64))
