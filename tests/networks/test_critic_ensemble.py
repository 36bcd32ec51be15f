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


def test_each_member_reads_its_own_row_and_choice_and_each_value_stands_where_its_row_does():
    critics = make()
    features, actions = torch.randn(5, 3, 8), torch.randn(5, 3, 7, ENCODED)
    values = critics(features, actions)
    assert values.shape == (COUNT, 5, 3, 7)
    for place, member in enumerate(critics.critics):
        for t in range(5):
            for b in range(3):
                for k in range(7):
                    alone = member(torch.cat((features[t, b], actions[t, b, k])))
                    torch.testing.assert_close(values[place, t, b, k], alone[0])


@pytest.mark.parametrize("rows", [(6,), (5, 3), (2, 5, 3)])
def test_of_all_actions_at_once_the_values_stand_where_their_rows_do(rows):
    critics = make(encoded=0, values=3)
    features = torch.randn(*rows, 8)
    values = critics(features)
    assert values.shape == (COUNT, *rows, 3)
    for place, member in enumerate(critics.critics):
        torch.testing.assert_close(values[place].flatten(0, -2), member(features.flatten(0, -2)))


def test_some_members_are_those_that_are_named_in_that_order():
    critics = make()
    features, actions = torch.randn(5, 8), torch.randn(5, 1, ENCODED)
    every = critics(features, actions)
    assert torch.equal(critics(features, actions, [2, 0]), every[[2, 0]])
    assert critics(features, actions, [3]).shape == (1, 5, 1)


def test_members_share_nothing_but_the_torso():
    critics = make()
    obs = {"obs": torch.randn(6, 3)}
    values = critics(critics.torso.encode(obs), torch.randn(6, 1, ENCODED))
    assert len({id(parameter) for member in critics.critics for parameter in member.parameters()}) == COUNT * 4
    for place, member in enumerate(critics.critics):
        for other in (*critics.critics, critics.torso):
            found = torch.autograd.grad(
                values[place].sum(), list(other.parameters()), retain_graph=True, allow_unused=True
            )
            reached = any(part is not None and part.abs().max() > 0 for part in found)
            assert reached == (other is member or other is critics.torso)
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize(
    ("encoded", "layers", "hidden"),
    [(ENCODED, {"critic": None}, 8), (ENCODED, {"critic": Mlp(5)}, 5), (0, {"critic": Mlp(5)}, 5), (0, {}, 6)],
)
def test_the_blueprints_layers_stand_in_front_or_one_as_wide_as_the_features(encoded, layers, hidden):
    member = make(encoded, 3, **layers).critics[0]
    assert member.head.in_features == hidden
    assert next(member.layers.parameters()).shape[1] == 8 + encoded


def test_without_layers_critics_of_all_actions_are_linear():
    member = make(0, 3, critic=None).critics[0]
    assert isinstance(member.layers, nn.Identity) and member.head.in_features == 8


@pytest.mark.parametrize("encoded", [0, ENCODED])
def test_in_bfloat16_values_leave_in_float32_and_near_and_heads_stay_exact(encoded):
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
    critics.critics[0].layers = nn.Identity()  # then there is nothing but the head, which is exact
    if not encoded:
        critics.critics[0].head = nn.Linear(8, 1)
        torch.testing.assert_close(critics(features)[0], critics.critics[0].head(features), rtol=0, atol=1e-6)
    assert all(parameter.dtype == torch.float32 for parameter in critics.parameters())
