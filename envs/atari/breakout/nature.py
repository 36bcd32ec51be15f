"""Four stacked frames, and the convolutional network of Mnih et al. (2015)."""

from algorithm.networks import Blueprint, FrameStack, NatureCnn

blueprint = Blueprint(encoders={"*": FrameStack(4, NatureCnn(512))})
