"""A convolution for the image of 10 x 10 cells: paddle, ball, its trail, and bricks."""

from algorithm.networks import Blueprint, Conv, RandomShift


def blueprint(shift: int = 0) -> Blueprint:
    """Return the network; learning shifts the image by up to `shift` cells, 0: not at all."""
    return Blueprint(
        encoders={"*": Conv((16, 3, 1), units=128)}, augmentations={"*": RandomShift(shift)} if shift else {}
    )
