from __future__ import annotations

import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, CriticEnsemble, Mlp, Torso
from tests.networks.test_actor_critic import ONE

TOLERANCE = 2**-7  # of one operation in bfloat16
COUNT, ENCODED = 4, 2


def make(encoded: int = ENCODED, values: int = 1, **layers) -> CriticEnsemble:
    torch.manual_seed(0)
    blueprint = Blueprint(**{"body": Mlp(8), "critic": Mlp(6), **layers})
    critics = CriticEnsemble(blueprint, Torso(blueprint, ONE), encoded, values, COUNT)
    for parameter in critics.parameters():
        nn.init.normal_(parameter, std=0.5)
    return critics


def test_each_critic_evaluates_each_action_of_each_row():
    critics = make()
    features, actions = torch.randn(5, 3, 8), torch.randn(5, 3, 7, ENCODED)
    values = critics(features, actions)
    assert values.shape == (COUNT, 5, 3, 7)
    for index, critic in enumerate(critics.critics):
        for t in range(5):
            for b in range(3):
                for k in range(7):
                    alone = critic(torch.cat((features[t, b], actions[t, b, k])))
                    torch.testing.assert_close(values[index, t, b, k], alone[0])


@pytest.mark.parametrize("rows", [(6,), (5, 3), (2, 5, 3)])
def test_each_critic_evaluates_all_actions_of_each_row(rows):
    critics = make(encoded=0, values=3)
    features = torch.randn(*rows, 8)
    values = critics(features)
    assert values.shape == (COUNT, *rows, 3)
    for index, critic in enumerate(critics.critics):
        torch.testing.assert_close(values[index].flatten(0, -2), critic(features.flatten(0, -2)))


@pytest.mark.parametrize(("encoded", "values"), [(ENCODED, 1), (0, 3)])
def test_a_value_may_have_a_shape(encoded, values):
    blueprint = Blueprint(critic=Mlp(6))
    critics = CriticEnsemble(blueprint, Torso(blueprint, ONE), encoded, values, COUNT, (5,))
    features = torch.randn(4, 2, critics.torso.size)
    actions = torch.randn(4, 2, 7, encoded) if encoded else None
    outputs = critics(features, actions)
    assert outputs.shape == (COUNT, 4, 2, 7 if encoded else 3, 5)
    alone = torch.cat((features[1, 0], actions[1, 0, 2])) if encoded else features[1, 0]
    expected = critics.critics[3](alone).view(values, 5)[0 if encoded else 2]
    torch.testing.assert_close(outputs[3, 1, 0, 2], expected)


def test_critics_are_selected_by_index_in_that_order():
    critics = make()
    features, actions = torch.randn(5, 8), torch.randn(5, 1, ENCODED)
    every = critics(features, actions)
    assert torch.equal(critics(features, actions, [2, 0]), every[[2, 0]])
    assert critics(features, actions, [3]).shape == (1, 5, 1)


def test_critics_share_only_the_torso():
    critics = make()
    obs = {"obs": torch.randn(6, 3)}
    values = critics(critics.torso.encode(obs), torch.randn(6, 1, ENCODED))
    assert len({id(parameter) for critic in critics.critics for parameter in critic.parameters()}) == COUNT * 4
    for index, critic in enumerate(critics.critics):
        for other in (*critics.critics, critics.torso):
            found = torch.autograd.grad(
                values[index].sum(), list(other.parameters()), retain_graph=True, allow_unused=True
            )
            reached = any(part is not None and part.abs().max() > 0 for part in found)
            assert reached == (other is critic or other is critics.torso)
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize(
    ("encoded", "layers", "hidden"),
    [(ENCODED, {"critic": None}, 8), (ENCODED, {"critic": Mlp(5)}, 5), (0, {"critic": Mlp(5)}, 5), (0, {}, 6)],
)
def test_the_blueprints_layers_precede_the_output_or_one_as_wide_as_the_features(encoded, layers, hidden):
    critic = make(encoded, 3, **layers).critics[0]
    assert critic.head.in_features == hidden
    assert next(critic.layers.parameters()).shape[1] == 8 + encoded


def test_without_layers_critics_of_all_actions_are_linear():
    critic = make(0, 3, critic=None).critics[0]
    assert isinstance(critic.layers, nn.Identity) and critic.head.in_features == 8


@pytest.mark.parametrize("encoded", [0, ENCODED])
def test_in_bfloat16_values_are_float32_and_close_and_heads_are_exact(encoded):
    critics = make(encoded)
    features = torch.randn(20, 8)
    actions = torch.randn(20, 3, encoded) if encoded else None
    exact = critics(features, actions)
    seen = []
    critics.critics[0].head.register_forward_pre_hook(lambda module, given: seen.append(given[0].dtype))
    critics.precision = torch.bfloat16
    rounded = critics(features, actions)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() <= 4 * TOLERANCE * exact.norm()
    critics.critics[0].layers = nn.Identity()  # only the head remains, which is exact
    if not encoded:
        critics.critics[0].head = nn.Linear(8, 1)
        torch.testing.assert_close(critics(features)[0], critics.critics[0].head(features), rtol=0, atol=1e-6)
    assert all(parameter.dtype == torch.float32 for parameter in critics.parameters())
