"""The outputs of networks: standard deviations, temperatures, statistics with masks, ensembles of critics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import ActorCritic, Blueprint, CriticEnsemble, Mlp, StdHead, Temperature, Torso
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.fakes import RunningSum
from tests.networks.test_actor_critic import ONE

MEANS, LOGITS, STD_INIT, STD_MIN = 2, 3, 0.5, 0.2
KINDS = ("fixed", "learned", "state_dependent")
# A network with memory acts in torch, one without memory in numpy on views of the parameters.
BLUEPRINTS = {"numpy": Blueprint(body=Mlp(8)), "torch": Blueprint(body=Mlp(8), memory=RunningSum)}


def make_std_head(kind: str, std_min: float = STD_MIN, std_max: float | None = None) -> StdHead:
    return StdHead(MEANS, kind, STD_INIT, std_min, std_max)


def std(std_head: StdHead, value: float) -> np.ndarray:
    """Return the std if the parameter or the column of every mean is `value`."""
    outputs = torch.full((4, std_head.n_columns + LOGITS), value)
    if std_head.log_std is not None:
        nn.init.constant_(std_head.log_std, value)
    with torch.no_grad():
        statistics = std_head(outputs)
    assert statistics.shape == (4, 2 * MEANS + LOGITS)
    assert statistics[:, :MEANS].eq(value).all() and statistics[:, 2 * MEANS :].eq(value).all()
    np.testing.assert_allclose(std_head.numpy()(outputs.numpy()), statistics, rtol=0, atol=1e-6)
    return statistics[:, MEANS : 2 * MEANS].exp().numpy()


@pytest.mark.parametrize("std_max", [None, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_std_starts_at_std_init(kind, std_max):
    np.testing.assert_allclose(std(make_std_head(kind, std_max=std_max), 0.0), STD_INIT, rtol=1e-6)


@pytest.mark.parametrize("kind", ["learned", "state_dependent"])
def test_a_learned_std_stays_above_std_min(kind):
    np.testing.assert_allclose(std(make_std_head(kind), np.log(2.0)), STD_MIN + 2 * (STD_INIT - STD_MIN), rtol=1e-6)
    np.testing.assert_allclose(std(make_std_head(kind), -30.0), STD_MIN, rtol=1e-6)
    np.testing.assert_allclose(std(make_std_head(kind, std_min=0.0), -3.0), STD_INIT * np.exp(-3), rtol=1e-5)


@pytest.mark.parametrize("kind", ["learned", "state_dependent"])
def test_a_learned_std_stays_between_std_min_and_std_max(kind):
    head = make_std_head(kind, std_max=2.0)
    np.testing.assert_allclose(std(head, -30.0), STD_MIN, rtol=1e-6)
    np.testing.assert_allclose(std(head, 30.0), 2.0, rtol=1e-6)


def test_a_std_in_a_range_is_that_of_flash_sac():
    """FlashSAC has log std = -5 + 2.5 (1 + tanh(number)), from e^-5 to 1."""
    head = StdHead(MEANS, "state_dependent", np.exp(-2.5), np.exp(-5), 1.0)
    for number in (-1.5, 0.0, 0.7):
        np.testing.assert_allclose(np.log(std(head, number)), -5 + 2.5 * (1 + np.tanh(number)), rtol=1e-5)


def test_a_fixed_std_has_neither_a_minimum_nor_parameters():
    fixed = make_std_head("fixed", std_min=2.0)
    for value in (-30.0, 3.0):
        np.testing.assert_allclose(std(fixed, value), STD_INIT, rtol=1e-6)
    assert not list(fixed.parameters())
    assert [p.shape for p in make_std_head("learned").parameters()] == [(MEANS,)]


def make(kind: str, blueprint: Blueprint) -> ActorCritic:
    torch.manual_seed(0)
    specs = {"obs": ObsSpec((3,)), ACTION_MASK: ObsSpec((LOGITS,), "uint8")}
    network = ActorCritic(blueprint, specs, 2 * MEANS + LOGITS, 1, make_std_head(kind))
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


@pytest.mark.parametrize("way", BLUEPRINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_learning_compute_the_same_statistics(kind, way):
    network = make(kind, BLUEPRINTS[way])
    assert (network.numpy() is not None) == (way == "numpy")
    rng = np.random.default_rng(0)
    allowed = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], np.uint8)
    obs = {"obs": rng.normal(size=(3, 3)).astype(np.float32), ACTION_MASK: allowed}
    memory = np.zeros((3, network.state_size), np.float32)
    statistics, _ = network.act(obs, memory)

    tensors = {name: torch.from_numpy(value) for name, value in obs.items()}
    features, _ = network.torso.step(tensors, torch.from_numpy(memory))
    with torch.no_grad():
        columns = network.compute_outputs(features)[:, : 2 * MEANS + LOGITS]
    np.testing.assert_allclose(statistics[:, : 2 * MEANS], columns[:, : 2 * MEANS], rtol=0, atol=1e-5)
    logits = np.where(allowed == 1, columns[:, 2 * MEANS :], MASKED_LOGIT)
    np.testing.assert_allclose(statistics[:, 2 * MEANS :], logits, rtol=1e-5, atol=1e-5)
    # In learning there may be fewer rows of statistics than of observations.
    masked = network.mask_logits(columns[:2], tensors)
    np.testing.assert_allclose(masked, statistics[:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("learned", [True, False])
def test_temperatures_start_at_the_given_logarithms_and_alpha_is_bounded(learned):
    temperature = Temperature(3, -2.3, learned)
    torch.testing.assert_close(temperature.alpha(), torch.tensor([-2.3] * 3).exp())
    assert temperature.log_alpha.requires_grad == learned and not temperature.alpha().requires_grad
    with torch.no_grad():
        temperature.log_alpha.copy_(torch.tensor([-1e4, 1e4, 1.0]))
    torch.testing.assert_close(temperature.alpha(), torch.tensor([-20.0, 5.0, 1.0]).exp())
    assert (temperature.alpha() > 0).all() and temperature.alpha().isfinite().all()
    assert temperature.log_alpha.abs().max() == 1e4


TOLERANCE = 2**-7  # of one operation in bfloat16
COUNT, ENCODED = 4, 2


def make_critics(encoded: int = ENCODED, values: int = 1, value_shape=(), **layers) -> CriticEnsemble:
    torch.manual_seed(0)
    blueprint = Blueprint(**{"body": Mlp(8), "critic": Mlp(6), **layers})
    critics = CriticEnsemble(blueprint, Torso(blueprint, ONE), encoded, values, COUNT, value_shape)
    for parameter in critics.parameters():
        nn.init.normal_(parameter, std=0.5)
    return critics


@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalars", "atoms"])
@pytest.mark.parametrize("rows", [(6,), (5, 3), (2, 5, 3)], ids=str)
@pytest.mark.parametrize(("encoded", "values"), [(ENCODED, 1), (0, 3)], ids=["given actions", "all actions"])
def test_each_critic_evaluates_each_action_of_each_row(encoded, values, rows, value_shape):
    critics = make_critics(encoded, values, value_shape)
    features, actions = torch.randn(*rows, 8), torch.randn(*rows, 7, ENCODED) if encoded else None
    outputs = critics(features, actions)
    assert outputs.shape == (COUNT, *rows, 7 if encoded else values, *value_shape)
    for index, critic in enumerate(critics.critics):
        for row in np.ndindex(rows):
            inputs = [torch.cat((features[row], action)) for action in actions[row]] if encoded else [features[row]]
            alone = torch.cat([critic(x) for x in inputs])
            torch.testing.assert_close(outputs[(index, *row)].flatten(), alone)


def test_critics_are_selected_by_index_in_that_order():
    critics = make_critics()
    features, actions = torch.randn(5, 8), torch.randn(5, 1, ENCODED)
    every = critics(features, actions)
    assert torch.equal(critics(features, actions, [2, 0]), every[[2, 0]])
    assert critics(features, actions, [3]).shape == (1, 5, 1)


def test_critics_share_only_the_torso():
    critics = make_critics()
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
    critic = make_critics(encoded, 3, **layers).critics[0]
    assert critic.head.in_features == hidden
    assert next(critic.layers.parameters()).shape[1] == 8 + encoded


def test_without_layers_critics_of_all_actions_are_linear():
    critic = make_critics(0, 3, critic=None).critics[0]
    assert isinstance(critic.layers, nn.Identity) and critic.head.in_features == 8


@pytest.mark.parametrize("encoded", [0, ENCODED])
def test_in_bfloat16_values_are_float32_and_close_and_heads_are_exact(encoded):
    critics = make_critics(encoded)
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
