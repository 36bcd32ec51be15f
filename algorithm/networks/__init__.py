"""Networks as data: an nn.py fills in a Blueprint, agents build what they need from it."""

from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.cpu_inference import ActingCopy
from algorithm.networks.critic_ensemble import Critics
from algorithm.networks.encoders.image import Conv, ImpalaResNet, NatureCnn
from algorithm.networks.encoders.vector import Vector
from algorithm.networks.flat_parameters import LaggingCopy, Parameters
from algorithm.networks.memory.attention import Attention
from algorithm.networks.memory.frame_stack import FrameStack
from algorithm.networks.memory.recurrent import Gru, Lstm
from algorithm.networks.mlp import Mlp
from algorithm.networks.noisy import Noise, NoisyMlp
from algorithm.networks.policy import Policy
from algorithm.networks.q_policy import Greedy
from algorithm.networks.running_statistics import RunningMoments
from algorithm.networks.std_head import Deviation
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
