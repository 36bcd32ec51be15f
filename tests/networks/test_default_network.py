"""The default network suits observations and actions, and the generated nn.py defines the same network."""

import numpy as np
import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.config.registry import find_class
from algorithm.networks import Mlp, Residual
from algorithm.networks.default_network import make_default_blueprint, make_nn_file
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role

FRAMES, BOARD = ObsSpec((4, 84, 84), "uint8", high=255), ObsSpec((4, 10, 10), "uint8", env_shape=(10, 10, 4))
VECTOR, MANY = ObsSpec((3,)), ObsSpec((100,), "uint8", n_values=(100,))


def network(role, blueprint):
    """Return the shapes of the parameters and buffers of the agent's network, by name."""
    agent = find_class("algorithm", "acer")(resolve([]).agent, blueprint, role, np.random.default_rng(0))
    return {name: value.shape for name, value in agent.policy.state_dict().items()}


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        ({"obs": VECTOR}, ActionSpec(0, (4,))),
        ({"obs": VECTOR}, ActionSpec(2)),
        ({"obs": VECTOR, "image": MANY}, ActionSpec(0, (2, 3))),
        ({"obs": VECTOR}, ActionSpec(1, (3,))),
        ({"obs": FRAMES}, ActionSpec(0, (6,))),
        ({"obs": BOARD}, ActionSpec(2)),
        ({"a [left]": BOARD, ACTION_MASK: ObsSpec((3,))}, ActionSpec(0, (3,))),
        ({"a [left]": FRAMES, "a l": VECTOR, "it's": BOARD}, ActionSpec(0, (2,))),
    ],
)
def test_the_file_makes_the_default_network(obs, action):
    role, names = Role(1, obs, action), {}
    exec(make_nn_file(role), names)
    blueprint = names["blueprint"]() if callable(names["blueprint"]) else names["blueprint"]
    assert network(role, blueprint) == network(role, make_default_blueprint(role))


def test_an_image_alone_has_hidden_layers_only_if_they_are_given():
    role = Role(1, {"obs": BOARD}, ActionSpec(0, (2,)))
    assert make_default_blueprint(role).body is None
    assert make_default_blueprint(role, units=32).body(128).size == 32
    assert make_default_blueprint(role, kind="residual").body(128).size == 256


@pytest.mark.parametrize(
    ("side", "kind"), [(3, "Vector"), (7, "Vector"), (8, "Conv"), (35, "Conv"), (36, "FrameStack"), (84, "FrameStack")]
)
def test_images_are_encoded_by_their_size(side, kind):
    spec = ObsSpec((3, side, side + 7), "uint8", high=255)
    role = Role(1, {"image": spec, "vector": VECTOR}, ActionSpec(0, (2,)))
    blueprint = make_default_blueprint(role)
    assert type(blueprint.encoders.get("image", blueprint.encoders["*"])).__name__ == kind
    policy = find_class("algorithm", "acer")(resolve([]).agent, blueprint, role, np.random.default_rng(0)).policy
    rows = {"image": np.zeros((2, *spec.shape), np.uint8), "vector": np.zeros((2, 3), np.float32)}
    assert np.isfinite(policy.act(rows, np.zeros((2, policy.torso.state_size), np.float32))[0]).all()


def test_policy_and_critic_share_no_layers_for_continuous_actions():
    assert make_default_blueprint(Role(1, {"obs": VECTOR}, ActionSpec(1))).body is None
    assert make_default_blueprint(Role(1, {"obs": VECTOR}, ActionSpec(0, (2,)))).body is not None


def test_an_action_mask_does_not_count_as_observation():
    mask = ObsSpec((100,), "uint8")
    role = Role(1, {"obs": VECTOR, ACTION_MASK: mask}, ActionSpec(0, (100,)))
    assert (
        make_default_blueprint(role).body(3).size
        == make_default_blueprint(Role(1, {"obs": VECTOR}, role.action_spec)).body(3).size
    )


def test_measured_values_are_normalized_and_one_hots_are_not():
    encoder = make_default_blueprint(Role(1, {"obs": VECTOR}, ActionSpec(1))).encoders["*"]
    rows = torch.tensor([[0.0, 0.0, 1000.0], [2.0, 4.0, 1002.0]])
    values = encoder(VECTOR)
    values.observe(rows)
    assert values(rows).tolist() == [[-1, -1, -1], [1, 1, 1]]
    assert not hasattr(encoder(MANY).transform, "moments")


CONTINUOUS = Role(1, {"obs": VECTOR}, ActionSpec(1))


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("plain", Mlp(32, 32)),
        ("residual", Residual(32, blocks=2, unit_weights=True)),
        ("renormalized", Mlp(32, 32, norm="batch_renorm")),
    ],
)
def test_the_hidden_layers_are_of_a_kind(kind, layers):
    blueprint = make_default_blueprint(CONTINUOUS, units=16, critic_units=32, kind=kind)
    assert str(blueprint.critic(3)) == str(layers(3)) and blueprint.policy(3).size == 16
    assert blueprint.encoders["*"].normalize == (kind != "residual")
    assert make_default_blueprint(CONTINUOUS, kind=kind).policy(3).size == 256


@pytest.mark.parametrize(
    ("role", "arguments", "message"),
    [
        (CONTINUOUS, {"kind": "round"}, "kind is 'round'; use one of: plain, residual, renormalized"),
        (Role(1, {"obs": VECTOR}, ActionSpec(0, (2,))), {"critic_units": 8}, "so that critic_units has no effect"),
        (Role(1, {"obs": ObsSpec((4,), n_values=(4,))}, ActionSpec(0, (2,))), {"units": 8}, "no hidden layers"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(role, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_default_blueprint(role, **arguments)
