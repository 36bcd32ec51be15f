"""Networks as data: an nn.py fills in a Blueprint, agents build what they need from it."""

from algorithm.networks.acting import ActingCopy
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.deviation import Deviation
from algorithm.networks.encoders.image import Conv, ImpalaResNet, NatureCnn
from algorithm.networks.encoders.vector import Vector
from algorithm.networks.memory.attention import Attention
from algorithm.networks.memory.frame_stack import FrameStack
from algorithm.networks.memory.recurrent import Gru, Lstm
from algorithm.networks.mlp import Mlp
from algorithm.networks.noisy import Noise, NoisyMlp
from algorithm.networks.parameters import LaggingCopy, Parameters
from algorithm.networks.statistics import RunningMoments

__all__ = [
    "ActingCopy",
    "ActorCritic",
    "Attention",
    "Blueprint",
    "Conv",
    "Deviation",
    "FrameStack",
    "Gru",
    "ImpalaResNet",
    "LaggingCopy",
    "Lstm",
    "Mlp",
    "NatureCnn",
    "Noise",
    "NoisyMlp",
    "Parameters",
    "RunningMoments",
    "Vector",
]
