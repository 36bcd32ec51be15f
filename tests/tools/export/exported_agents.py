"""Small agents of every kind with random weights, and their ONNX files."""

from __future__ import annotations

import torch

from algorithm.networks import (
    Attention,
    Blueprint,
    Chain,
    Conv,
    Entities,
    FrameStack,
    Gru,
    ImpalaResNet,
    Lstm,
    Mlp,
    NoisyMlp,
    OneHot,
    Residual,
    UnitSphere,
    Vector,
)
from algorithm.networks.normalization import find_batch_norms
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.tools.export.export import export_role
from algorithm.tools.export.result import ExportResult
from tests.builders import make_acer

VECTOR = {"Zeta": ObsSpec((5,)), "Alpha": ObsSpec((6,), env_shape=(3, 2))}  # not in the order of the alphabet
IMAGE = {"Camera": ObsSpec((3, 9, 8), "uint8", high=255.0), "Speed": ObsSpec((2,))}
BUFFER = {"Buffer": ObsSpec((15,), env_shape=(5, 3), rows=5), "Speed": ObsSpec((2,))}
CONV = {"Camera": Conv((4, 3, 2), units=8), "*": Vector()}
FRAMES = {"Camera": FrameStack(2, CONV["Camera"]), "*": Vector()}
NETS = {
    "mlp": (VECTOR, Blueprint({"*": Vector(normalize=True)}, policy=Mlp(8, activation="tanh"), critic=Mlp(8))),
    "convnet": (IMAGE, Blueprint(CONV, body=Mlp(8))),
    "resnet": (IMAGE, Blueprint({"Camera": ImpalaResNet((4,), 8), "*": Vector()})),
    "codes": (IMAGE, Blueprint({"Camera": OneHot(2, 3, 256), "*": Vector()}, body=Mlp(8))),
    "gru": (VECTOR, Blueprint(body=Mlp(8), memory=Gru(6))),
    "lstm": (VECTOR, Blueprint({"*": Vector(0.5)}, memory=Lstm(6))),
    "attention": (VECTOR, Blueprint(memory=Attention(8, heads=2, window=4, layers=2))),
    "attention, rotary": (VECTOR, Blueprint(memory=Attention(8, heads=2, window=4, positions="rotary", gate=True))),
    "attention, absolute": (VECTOR, Blueprint(memory=Attention(8, heads=2, window=3, positions="absolute"))),
    "entities": (BUFFER, Blueprint({"Buffer": Entities(8, heads=2, layers=2), "*": Vector()}, body=Mlp(8))),
    "frames": (IMAGE, Blueprint({"Camera": FrameStack(3, Conv((4, 3, 2), units=8)), "*": FrameStack(2, Vector())})),
    "frames and lstm": (IMAGE, Blueprint(FRAMES, memory=Lstm(4))),
    "noisy": (VECTOR, Blueprint(body=NoisyMlp(8))),
    "residual": (VECTOR, Blueprint(body=Chain(UnitSphere(), Residual(6)), policy=Residual(8, 1, norm="batch_renorm"))),
    "residual, norms of rows": (VECTOR, Blueprint(body=Residual(6, norm="layer"), policy=Residual(6, norm="rms"))),
    "norms": (VECTOR, Blueprint(body=Mlp(8, 6, norm="batch"), policy=Mlp(6, norm="layer", activation="tanh"))),
    "residual after convolutions": (IMAGE, Blueprint(CONV, body=Residual(6, norm="batch_renorm", unit_weights=True))),
}
# Networks of Reactor: memories of policy and critic after the torso, which may have a memory and past frames, too.
BRANCHES = {
    "layers": (VECTOR, Blueprint(body=Mlp(8), policy=Mlp(8), critic=Mlp(8))),
    "memory of the policy": (VECTOR, Blueprint(policy=Gru(4))),
    "memory of the critic": (VECTOR, Blueprint(policy=Mlp(8), critic=Lstm(3))),
    "memories": (VECTOR, Blueprint(body=Mlp(8), policy=Lstm(4), critic=Attention(8, heads=2, window=4))),
    "memories and frames": (IMAGE, Blueprint(FRAMES, memory=Gru(3), policy=Gru(4), critic=Gru(5))),
}
ACTIONS = {
    "continuous": ActionSpec(2),
    "discrete": ActionSpec(branches=(3,)),
    "multi-discrete": ActionSpec(branches=(3, 2)),
    "hybrid": ActionSpec(2, (3, 2)),
}


def role_of(obs_specs: dict[str, ObsSpec], action: ActionSpec) -> Role:
    """Return a role as a Unity scene has it: discrete actions have masks."""
    mask = {ACTION_MASK: ObsSpec((sum(action.branches),), "uint8")} if action.branches else {}
    return Role(4, {**obs_specs, **mask}, action)


def agent_of(role: Role, blueprint: Blueprint, seed: int = 0, make=make_acer, **changes):
    """Return an agent for playing with random weights, and random statistics of observations and of batches."""
    torch.manual_seed(seed)  # the same weights in every order of the tests
    agent = make(role, blueprint, seed, **changes)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.normal_(std=0.3)
        for module in agent.running_statistics().values():
            for moments in module:
                moments.merge(torch.randn(50, *moments.mean.shape) * 2 + 1)
        for norm in find_batch_norms([agent.policy]):
            norm.running[: norm.size].normal_()
            norm.running[norm.size : 2 * norm.size].uniform_(0.1, 2)
    agent.policy.eval()
    return agent


def export_of(net: str, action: str, into, opset: int = 15, **changes) -> ExportResult:
    """Export an agent with a kind of network and of action, as `Brain.onnx`."""
    specs, blueprint = {**NETS, **BRANCHES}[net]
    role = role_of(specs, ACTIONS[action])
    return export_role(agent_of(role, blueprint, **changes), "Brain", role, 100, into, opset)
