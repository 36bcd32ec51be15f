"""One hidden layer and a memory, which `nn_config: {memory: ...}` chooses."""

from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp, Vector

MEMORIES = {"gru": Gru(32), "lstm": Lstm(32), "attention": Attention(32, heads=2, window=10)}


def blueprint(memory: str = "gru"):
    """A frame stack remembers in front of the network; `none` remembers nothing."""
    encoder = FrameStack(10, Vector()) if memory == "frame_stack" else Vector()
    return Blueprint(encoders={"*": encoder}, body=Mlp(32), memory=MEMORIES.get(memory))
