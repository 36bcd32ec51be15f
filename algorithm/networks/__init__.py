"""Neural networks: parts for a network definition (nn.py), and the networks that agents build from it.

An nn.py defines `blueprint`, a Blueprint or a function that returns one. Its parts:

    encoders of observations     Vector, OneHot, Conv, NatureCnn, ImpalaResNet, Entities, FrameStack
    hidden layers                Mlp, NoisyMlp, Residual, UnitSphere, Chain, make_layers
    memories                     Gru, Lstm, Attention
    augmentations                RandomShift

A custom part is a function or class that takes the spec of an observation (encoders) or the size of its input
(layers, memories) and returns a torch module as described by Encoder, Layers and Memory. A custom augmentation takes
the spec of an observation and returns a function of rows of this observation.
"""

from algorithm.networks.actor_critic import (
    ActorCritic,
    BranchedActorCritic,
    CriticEnsemble,
    GreedyQPolicy,
    SeparateCritic,
)
from algorithm.networks.default_network import make_layers
from algorithm.networks.encoders import (
    Conv,
    ImpalaResNet,
    NatureCnn,
    OneHot,
    RandomShift,
    RunningMoments,
    Vector,
)
from algorithm.networks.entities import Entities
from algorithm.networks.flat_parameters import FlatParameters, TargetNetwork
from algorithm.networks.heads import BoundedMeans, StdHead, Temperature
from algorithm.networks.layers import Chain, Mlp, Noise, NoisyMlp, Residual, UnitSphere, collect_noise
from algorithm.networks.memories import Attention, FrameStack, Gru, Lstm
from algorithm.networks.modules import Encoder, Layers, Memory
from algorithm.networks.normalization import batch_statistics
from algorithm.networks.policy import InferenceCopy, Policy
from algorithm.networks.torso import Blueprint, Torso

__all__ = [
    "ActorCritic",
    "Attention",
    "Blueprint",
    "BoundedMeans",
    "BranchedActorCritic",
    "Chain",
    "Conv",
    "CriticEnsemble",
    "Encoder",
    "Entities",
    "FlatParameters",
    "FrameStack",
    "GreedyQPolicy",
    "Gru",
    "ImpalaResNet",
    "InferenceCopy",
    "Layers",
    "Lstm",
    "Memory",
    "Mlp",
    "NatureCnn",
    "Noise",
    "NoisyMlp",
    "OneHot",
    "Policy",
    "RandomShift",
    "Residual",
    "RunningMoments",
    "SeparateCritic",
    "StdHead",
    "TargetNetwork",
    "Temperature",
    "Torso",
    "UnitSphere",
    "Vector",
    "batch_statistics",
    "collect_noise",
    "make_layers",
]
