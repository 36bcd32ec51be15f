"""A view of 3 x 3 cells as codes, one hidden layer, and a memory that `nn_config: {memory: ...}` selects."""

from algorithm.networks import Blueprint, Gru, Lstm, Mlp, OneHot, Vector

MEMORIES = {"gru": Gru(64), "lstm": Lstm(64)}


def blueprint(memory: str = "gru") -> Blueprint:
    """Return the network.

    Args:
        memory: gru, lstm, or none.
    """
    encoders = {"image": OneHot(11, 6, 3), "*": Vector()}
    return Blueprint(encoders=encoders, body=Mlp(64), memory=MEMORIES.get(memory))
