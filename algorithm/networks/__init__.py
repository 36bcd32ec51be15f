"""Networks as data: an nn.py fills in a Blueprint, agents build what they need from it."""

from algorithm.networks.acting import ActingCopy
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.critics import Critics
from algorithm.networks.deviation import Deviation
from algorithm.networks.encoders.image import Conv, ImpalaResNet, NatureCnn
from algorithm.networks.encoders.vector import Vector
from algorithm.networks.greedy import Greedy
from algorithm.networks.memory.attention import Attention
from algorithm.networks.memory.frame_stack import FrameStack
from algorithm.networks.memory.recurrent import Gru, Lstm
from algorithm.networks.mlp import Mlp
from algorithm.networks.noisy import Noise, NoisyMlp
from algorithm.networks.parameters import LaggingCopy, Parameters
from algorithm.networks.policy import Policy
from algorithm.networks.statistics import RunningMoments
from algorithm.networks.temperature import Temperature
from algorithm.networks.torso import Torso

__all__ = [
    "ActingCopy",
    "ActorCritic",
    "Attention",
    "Blueprint",
    "Conv",
    "Critics",
    "Deviation",
    "FrameStack",
    "Greedy",
    "Gru",
    "ImpalaResNet",
    "LaggingCopy",
    "Lstm",
    "Mlp",
    "NatureCnn",
    "Noise",
    "NoisyMlp",
    "Parameters",
    "Policy",
    "RunningMoments",
    "Temperature",
    "Torso",
    "Vector",
]
