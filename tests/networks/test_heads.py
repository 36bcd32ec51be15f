"""Standard deviations and temperatures, and statistics with masks: the same in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import ActorCritic, Blueprint, Mlp, StdHead, Temperature
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.fakes import RunningSum

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
