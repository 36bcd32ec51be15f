"""Two numbers in, a hidden layer, and a memory, which `nn_config: {memory: ...}` chooses."""

from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp, Vector

MEMORIES = {"gru": Gru(64), "lstm": Lstm(64), "attention": Attention(64, heads=4, window=8)}


def blueprint(memory: str = "gru"):
    """A frame stack remembers in front of the network; `none` remembers nothing."""
    seen = Vector(scale=(0.5, 10.0) * (4 if memory == "frame_stack" else 1))  # in units of 2 m, tenths of a radian
    encoder = FrameStack(4, seen) if memory == "frame_stack" else seen
    return Blueprint(encoders={"*": encoder}, body=Mlp(64), memory=MEMORIES.get(memory))
