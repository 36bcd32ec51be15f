"""Networks as data: an nn.py fills in a Blueprint, agents build what they need from it."""

from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.cpu_inference import InferenceCopy
from algorithm.networks.critic_ensemble import CriticEnsemble
from algorithm.networks.encoders.image import Conv, ImpalaResNet, NatureCnn
from algorithm.networks.encoders.vector import Vector
from algorithm.networks.flat_parameters import FlatParameters, TargetNetwork
from algorithm.networks.memory.attention import Attention
from algorithm.networks.memory.frame_stack import FrameStack
from algorithm.networks.memory.recurrent import Gru, Lstm
from algorithm.networks.mlp import Mlp
from algorithm.networks.noisy import Noise, NoisyMlp
from algorithm.networks.policy import Policy
from algorithm.networks.q_policy import GreedyQPolicy
from algorithm.networks.running_statistics import RunningMoments
from algorithm.networks.std_head import StdHead
from algorithm.networks.temperature import Temperature
from algorithm.networks.torso import Torso

__all__ = [
    "ActorCritic",
    "Attention",
    "Blueprint",
    "Conv",
    "CriticEnsemble",
    "FlatParameters",
    "FrameStack",
    "GreedyQPolicy",
    "Gru",
    "ImpalaResNet",
    "InferenceCopy",
    "Lstm",
    "Mlp",
    "NatureCnn",
    "Noise",
    "NoisyMlp",
    "Policy",
    "RunningMoments",
    "StdHead",
    "TargetNetwork",
    "Temperature",
    "Torso",
    "Vector",
]
