"""Networks as data: an nn.py fills in a Blueprint, agents build what they need from it."""

from algorithm.networks.acting import ActingCopy
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.deviation import Deviation
from algorithm.networks.encoders.vector import Vector
from algorithm.networks.mlp import Mlp
from algorithm.networks.noisy import Noise, NoisyMlp
from algorithm.networks.parameters import LaggingCopy, Parameters
from algorithm.networks.statistics import RunningMoments

__all__ = [
    "ActingCopy",
    "ActorCritic",
    "Blueprint",
    "Deviation",
    "LaggingCopy",
    "Mlp",
    "Noise",
    "NoisyMlp",
    "Parameters",
    "RunningMoments",
    "Vector",
]
