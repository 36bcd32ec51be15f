"""One hidden layer, and a memory that `nn_config: {memory: ...}` selects."""

from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp, Vector

MEMORIES = {"gru": Gru(32), "lstm": Lstm(32), "attention": Attention(32, heads=2, window=10)}


def blueprint(memory: str = "gru") -> Blueprint:
    """Return the network.

    Args:
        memory: gru, lstm, attention, frame_stack (in the encoder), none, or separate (for Reactor): a GRU each for
            policy and critic.
    """
    if memory == "separate":
        return Blueprint(body=Mlp(32), policy=Gru(32), critic=Gru(32))
    encoder = FrameStack(10, Vector()) if memory == "frame_stack" else Vector()
    return Blueprint(encoders={"*": encoder}, body=Mlp(32), memory=MEMORIES.get(memory))
