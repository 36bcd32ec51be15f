"""The network of a folder without an nn.py, and the same as an nn.py of its own."""

from __future__ import annotations

import json
from glob import escape
from math import prod

from algorithm.networks import Blueprint, Conv, Mlp, NatureCnn, Vector
from algorithm.networks.blueprint import EncoderFactory
from algorithm.specs import ACTION_MASK, ObsSpec, Role

TEMPLATE = '''\
"""{seen}; two hidden layers{whose}."""

from algorithm.networks import Blueprint, {names}


def blueprint(units: int = {units}):
    """The arguments come from nn_config in config.yaml."""
    encoders = {{
{encoders}        # Numbers that are measured are brought to mean 0 and spread 1; Vector() would leave them as they are.
        "*": Vector(normalize=True),
    }}
    return Blueprint(encoders, {layers})
'''
SHARED_LAYERS = "body=Mlp(units, units)"
SEPARATE_LAYERS = "policy=Mlp(units, units), critic=Mlp(units, units)"

# The least side of an image, in pixels, and what reads it. What is smaller is read as a vector: its numbers are often
# codes, as MiniGrid's view of 7 x 7 cells, which convolutions read as almost the same shade.
IMAGE_ENCODERS: tuple[tuple[int, EncoderFactory, str], ...] = (
    (36, NatureCnn(512), "NatureCnn(512)"),
    (8, Conv((16, 3, 1), (32, 3, 2), units=128), "Conv((16, 3, 1), (32, 3, 2), units=128)"),
)


def make_default_blueprint(role: Role) -> Blueprint:
    """A sensible network: vectors are normalised, images go through convolutions; two hidden layers.

    Policy and critic share them, but for continuous actions.
    """
    layers = Mlp(*[_choose_units(role)] * 2)
    encoders: dict[str, EncoderFactory] = {
        escape(name): encoder for name, (encoder, _) in _choose_image_encoders(role).items()
    }
    encoders["*"] = Vector(normalize=True)
    if role.action_spec.continuous:
        return Blueprint(encoders, policy=layers, critic=layers)
    return Blueprint(encoders, body=layers)


def make_nn_file(role: Role) -> str:
    """The text of an nn.py that makes the default network of `role`."""
    whose, layers = (
        (" each for policy and critic", SEPARATE_LAYERS) if role.action_spec.continuous else ("", SHARED_LAYERS)
    )
    texts = {escape(name): text for name, (_, text) in _choose_image_encoders(role).items()}
    used = {text.partition("(")[0] for text in texts.values()}
    return TEMPLATE.format(
        seen="Images through convolutions, other observations as vectors" if texts else "Every observation as a vector",
        whose=whose,
        names=", ".join(sorted({"Mlp", "Vector", *used})),
        units=_choose_units(role),
        encoders="".join(f"        {json.dumps(name)}: {text},\n" for name, text in texts.items()),
        layers=layers,
    )


def _choose_image_encoders(role: Role) -> dict[str, tuple[EncoderFactory, str]]:
    """For each observation that is an image, what reads it."""
    encoders = {}
    for name, spec in role.obs_specs.items():
        fitting = (image[1:] for image in IMAGE_ENCODERS if _get_shorter_side(spec) >= image[0])
        if entry := next(fitting, None):
            encoders[name] = entry
    return encoders


def _get_shorter_side(spec: ObsSpec) -> int:
    """The shorter one of an image; 0 for what is none."""
    return min(spec.shape[1:]) if len(spec.shape) == 3 else 0


def _choose_units(role: Role) -> int:
    """Of a layer: more where there is much to see."""
    size = sum(prod(spec.shape) for name, spec in role.obs_specs.items() if name != ACTION_MASK)
    return 64 if size <= 64 else 256
