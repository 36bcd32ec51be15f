"""The network of a folder without an nn.py, and the same as an nn.py of its own."""

from __future__ import annotations

from math import prod

from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.specs import MASK, Role

NN = '''\
"""Every observation as a vector; two hidden layers{whose}."""

from algorithm.networks import Blueprint, Mlp, Vector


def blueprint(units: int = {units}):
    """The arguments come from nn_config in config.yaml."""
    # Numbers that are measured are brought to mean 0 and spread 1; Vector() would leave them as they are.
    return Blueprint(encoders={{"*": Vector(normalize=True)}}, {layers})
'''
SHARED = "body=Mlp(units, units)"
SEPARATE = "policy=Mlp(units, units), critic=Mlp(units, units)"


def default_blueprint(role: Role) -> Blueprint:
    """A sensible network for observations that are vectors: normalised, two hidden layers.

    Policy and critic share them, but for continuous actions.
    """
    layers, encoders = Mlp(*[_units(role)] * 2), {"*": Vector(normalize=True)}
    if role.action_spec.continuous:
        return Blueprint(encoders, policy=layers, critic=layers)
    return Blueprint(encoders, body=layers)


def nn_file(role: Role) -> str:
    """The text of an nn.py that makes the default network of `role`."""
    whose, layers = (" each for policy and critic", SEPARATE) if role.action_spec.continuous else ("", SHARED)
    return NN.format(whose=whose, units=_units(role), layers=layers)


def _units(role: Role) -> int:
    """Of a layer: more where there is much to see."""
    seen = sum(prod(spec.shape) for name, spec in role.obs_specs.items() if name != MASK)
    return 64 if seen <= 64 else 256
