"""Convolutions for the image, the requested object as a vector, and a layer that combines both."""

from algorithm.networks import Blueprint, Conv, Mlp, RandomShift, Vector


def blueprint(shift: int = 0) -> Blueprint:
    """Return the network; learning shifts the image by up to `shift` pixels, 0: not at all."""
    return Blueprint(
        encoders={"picture": Conv((32, 4, 2), (32, 3, 1), units=128), "*": Vector()},
        augmentations={"picture": RandomShift(shift)} if shift else {},
        body=Mlp(128),
    )
