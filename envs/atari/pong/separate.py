"""Four stacked frames, the network of Mnih et al. (2015), and a hidden layer each for policy and critic."""

from algorithm.networks import Blueprint, FrameStack, Mlp, NatureCnn

blueprint = Blueprint(encoders={"*": FrameStack(4, NatureCnn(512))}, policy=Mlp(128), critic=Mlp(128))
