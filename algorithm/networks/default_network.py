"""The network for an environment without an nn.py, and the text of an nn.py that defines the same network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from glob import escape
from math import prod

from algorithm.networks.encoders import Conv, Vector
from algorithm.networks.entities import Entities
from algorithm.networks.layers import Mlp, Residual
from algorithm.networks.memories import FrameStack
from algorithm.networks.modules import EncoderFactory, LayersFactory
from algorithm.networks.torso import Blueprint
from algorithm.specs import ACTION_MASK, ObsSpec, Role

TEMPLATE = '''\
"""{observations}; hidden layers{owner}."""

from algorithm.networks import Blueprint, {names}


def blueprint(units: int = {units}, kind: str = "plain"):
    """Return the network, with layers of a kind of `make_layers`; the arguments come from nn_config in config.yaml."""
    encoders = {{
{encoders}        # Normalize measured values to mean 0 and standard deviation 1; residual layers have batch norms.
        "*": Vector(normalize=kind != "residual"),
    }}
    return Blueprint(encoders, {layers})
'''
TABLE_TEMPLATE = '''\
"""A table: a row of outputs for each value of the observation, without hidden layers."""

from algorithm.networks import Blueprint, Vector

# A hidden layer would spread what is learned about one value to all others.
blueprint = Blueprint({"*": Vector()})
'''
IMAGE_TEMPLATE = '''\
"""Convolutions for the image; policy and critic share all layers."""

from algorithm.networks import Blueprint, {names}

blueprint = Blueprint(
    encoders={{{key}: {encoder}}},{body}
)
'''
SMALL = 64  # the largest size of an observation, in values, for which 64 units suffice if no action is continuous

# The smallest shorter side of an image in pixels, and the encoder from that size on. A smaller image is encoded as a
# vector: its values are often codes, as in MiniGrid's view of 7 x 7 cells, and convolutions hardly distinguish codes.
IMAGE_ENCODERS: tuple[tuple[int, EncoderFactory, str], ...] = (
    (
        36,  # of as many pixels, a single frame does not show velocities
        FrameStack(4, Conv((16, 4, 2), (32, 4, 2), (32, 3, 1), units=None)),
        "FrameStack(4, Conv((16, 4, 2), (32, 4, 2), (32, 3, 1), units=None))",
    ),
    (8, Conv((16, 3, 1), units=128), "Conv((16, 3, 1), units=128)"),
)
LARGE_IMAGE = IMAGE_ENCODERS[0][0]  # pixels of the shorter side
LARGE_IMAGE_BODY = (Mlp(256, norm="layer"), 'Mlp(256, norm="layer")')  # if it is all that is observed, and its text


def is_table(role: Role) -> bool:
    """Return whether a role observes a single integer and acts with a single choice: a table holds all outputs."""
    specs = [spec for name, spec in role.obs_specs.items() if name != ACTION_MASK]
    action = role.action_spec
    return len(specs) == 1 and len(specs[0].n_values) == 1 and len(action.branches) == 1 and not action.continuous


def has_images(role: Role) -> bool:
    """Return whether the default network of a role has convolutions."""
    return any(_choose_image_encoder(spec) for spec in role.obs_specs.values())


def has_large_images(role: Role) -> bool:
    """Return whether the default network of a role has convolutions for many pixels."""
    return any(_find_shorter_side(spec) >= LARGE_IMAGE for spec in role.obs_specs.values())


def make_default_blueprint(
    role: Role, units: int | None = None, critic_units: int | None = None, kind: str = "plain"
) -> Blueprint:
    """Return a network that suits a role: normalized vectors, convolutions for images, attention for entities.

    Policy and critic have separate layers for continuous actions, otherwise they share their layers. For a single
    integer as observation and a single choice as action, the network is a table; for an image alone and choices, it is
    the convolution, with a hidden layer between layer norms if the image is large.

    Args:
        role: Observations and actions.
        units: Units of a hidden layer; None: as many as suit the role, or no layer.
        critic_units: Those of the critic, if its layers are separate; None: as many.
        kind: As for `make_layers`. Residual networks have batch norms, and need no normalized observations.
    """
    if is_table(role):
        if units or critic_units or kind != "plain":
            raise ValueError("a table has no hidden layers")
        return Blueprint({"*": Vector()})
    encoders: dict[str, EncoderFactory] = {
        escape(name): encoder for name, (encoder, _) in _choose_encoders(role).items()
    }
    encoders["*"] = Vector(normalize=kind != "residual")
    layers = make_layers(kind, units or _choose_units(role))
    if role.action_spec.continuous:
        critic_layers = make_layers(kind, critic_units) if critic_units else layers
        return Blueprint(encoders, policy=layers, critic=critic_layers)
    if critic_units:
        raise ValueError("policy and critic share their layers, so that critic_units has no effect")
    if units is None and kind == "plain" and _is_image_alone(role):
        return Blueprint(encoders, body=LARGE_IMAGE_BODY[0] if has_large_images(role) else None)
    return Blueprint(encoders, body=layers)


def make_layers(kind: str, units: int) -> LayersFactory:
    """Return hidden layers.

    Args:
        kind: plain: two layers; residual: two residual blocks with batch norms and unit weights (FlashSAC);
            renormalized: two layers with batch renormalization (CrossQ).
        units: Units of a layer.

    Raises:
        ValueError: Another kind.
    """
    makers: Mapping[str, Callable[[], LayersFactory]] = {
        "plain": lambda: Mlp(units, units),
        "residual": lambda: Residual(units, blocks=2, unit_weights=True),
        "renormalized": lambda: Mlp(units, units, norm="batch_renorm"),
    }
    if kind not in makers:
        raise ValueError(f"kind is {kind!r}; use one of: {', '.join(makers)}")
    return makers[kind]()


def make_nn_file(role: Role) -> str:
    """Return the text of an nn.py that makes the default network of a role."""
    if is_table(role):
        return TABLE_TEMPLATE
    owner, layers = "", "body=make_layers(kind, units)"
    if role.action_spec.continuous:
        owner = " each for policy and critic"
        layers = "policy=make_layers(kind, units), critic=make_layers(kind, units)"
    texts = {escape(name): text for name, (_, text) in _choose_encoders(role).items()}
    if _is_image_alone(role):
        ((name, text),) = texts.items()
        body = f"\n    body={LARGE_IMAGE_BODY[1]}," if has_large_images(role) else ""
        names = ", ".join(sorted(_find_factories(text + body)))
        return IMAGE_TEMPLATE.format(names=names, key=json.dumps(name), encoder=text, body=body)
    used = _find_factories(" ".join(texts.values()))
    return TEMPLATE.format(
        observations=_describe_encoders(used),
        owner=owner,
        names=", ".join([*sorted({"Vector", *used}), "make_layers"]),
        units=_choose_units(role),
        encoders="".join(f"        {json.dumps(name)}: {text},\n" for name, text in texts.items()),
        layers=layers,
    )


def _choose_encoders(role: Role) -> dict[str, tuple[EncoderFactory, str]]:
    """Return an encoder, and its text, for each observation that is an image of sufficient size, or has entities."""
    chosen = {
        name: (Entities(), "Entities()") if spec.rows else _choose_image_encoder(spec)
        for name, spec in role.obs_specs.items()
    }
    return {name: entry for name, entry in chosen.items() if entry}


def _choose_image_encoder(spec: ObsSpec) -> tuple[EncoderFactory, str] | None:
    """Return an encoder, and its text, for an image of sufficient size."""
    return next((image[1:] for image in IMAGE_ENCODERS if _find_shorter_side(spec) >= image[0]), None)


def _find_shorter_side(spec: ObsSpec) -> int:
    """Return the pixels of the shorter side of an image; 0 for another observation."""
    return min(spec.shape[1:]) if len(spec.shape) == 3 else 0


def _is_image_alone(role: Role) -> bool:
    """Return whether a role observes an image only, which is encoded as one, and has no continuous actions."""
    specs = [spec for name, spec in role.obs_specs.items() if name != ACTION_MASK]
    return len(specs) == 1 and bool(_choose_image_encoder(specs[0])) and not role.action_spec.continuous


def _find_factories(text: str) -> set[str]:
    """Return the names that are called in the text of a network."""
    return set(re.findall(r"\w+(?=\()", text))


def _describe_encoders(used: Set[str]) -> str:
    """Return the start of the docstring of an nn.py, given the encoders in it that are not vectors."""
    kinds = {"Attention among entities": used & {"Entities"}, "convolutions for images": used - {"Entities"}}
    parts = [kind for kind, names in kinds.items() if names]
    if not parts:
        return "Observations as vectors"
    text = ", ".join([*parts, "vectors for other observations"])
    return text[0].upper() + text[1:]


def _choose_units(role: Role) -> int:
    """Return the units of a hidden layer: more units for large observations, of which a one-hot vector is one value.

    Continuous actions need more units too: the critic of 64 units of Pendulum-v1, with three observed values, is less
    exact on some seeds (mean return -155, and -150 with 256 units).
    """
    size = sum(len(spec.n_values) or prod(spec.shape) for name, spec in role.obs_specs.items() if name != ACTION_MASK)
    return 64 if size <= SMALL and not role.action_spec.continuous else 256
