"""Position and angle, one hidden layer, and a memory that `nn_config: {memory: ...}` selects."""

from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp, Vector

MEMORIES = {"gru": Gru(64), "lstm": Lstm(64), "attention": Attention(64, heads=4, window=8)}


def blueprint(memory: str = "gru") -> Blueprint:
    """Return the network; `memory` is gru, lstm, attention, frame_stack (in the encoder) or none."""
    vector = Vector(scale=(0.5, 10.0) * (4 if memory == "frame_stack" else 1))  # in units of 2 m and 0.1 rad
    encoder = FrameStack(4, vector) if memory == "frame_stack" else vector
    return Blueprint(encoders={"*": encoder}, body=Mlp(64), memory=MEMORIES.get(memory))
