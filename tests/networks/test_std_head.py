"""Standard deviations by their kind, and what acting makes of deviations and masks: in numpy and in torch the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import ActorCritic, Blueprint, Mlp, StdHead
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.fakes import RunningSum

MEANS, LOGITS, START, FLOOR = 2, 3, 0.5, 0.2
KINDS = ("fixed", "learned", "state_dependent")
# With a memory acting runs the module itself, without one it runs on numpy views of the parameters.
BLUEPRINTS = {"numpy": Blueprint(body=Mlp(8)), "torch": Blueprint(body=Mlp(8), memory=RunningSum)}


def deviation_of(kind: str, floor: float = FLOOR) -> StdHead:
    return StdHead(MEANS, kind, START, floor)


def std(deviation: StdHead, own: float) -> np.ndarray:
    """The deviations where what is learned, of either kind, is `own`."""
    outputs = torch.full((4, deviation.n_columns + LOGITS), own)
    if deviation.log_std is not None:
        nn.init.constant_(deviation.log_std, own)
    with torch.no_grad():
        statistics = deviation(outputs)
    assert statistics.shape == (4, 2 * MEANS + LOGITS)
    assert statistics[:, :MEANS].eq(own).all() and statistics[:, 2 * MEANS :].eq(own).all()
    np.testing.assert_allclose(deviation.numpy()(outputs.numpy()), statistics, rtol=0, atol=1e-6)
    return statistics[:, MEANS : 2 * MEANS].exp().numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_all_begin_at_the_start(kind):
    np.testing.assert_allclose(std(deviation_of(kind), 0.0), START, rtol=1e-6)


@pytest.mark.parametrize("kind", ["learned", "state_dependent"])
def test_what_is_learned_stays_above_its_floor(kind):
    np.testing.assert_allclose(std(deviation_of(kind), np.log(2.0)), FLOOR + 2 * (START - FLOOR), rtol=1e-6)
    np.testing.assert_allclose(std(deviation_of(kind), -30.0), FLOOR, rtol=1e-6)
    np.testing.assert_allclose(std(deviation_of(kind, floor=0.0), -3.0), START * np.exp(-3), rtol=1e-5)


def test_what_is_fixed_has_neither_a_floor_nor_parameters():
    fixed = deviation_of("fixed", floor=2.0)
    for own in (-30.0, 3.0):
        np.testing.assert_allclose(std(fixed, own), START, rtol=1e-6)
    assert not list(fixed.parameters())
    assert [p.shape for p in deviation_of("learned").parameters()] == [(MEANS,)]


def make(kind: str, blueprint: Blueprint) -> ActorCritic:
    torch.manual_seed(0)
    specs = {"obs": ObsSpec((3,)), ACTION_MASK: ObsSpec((LOGITS,), "uint8")}
    network = ActorCritic(blueprint, specs, 2 * MEANS + LOGITS, 1, deviation_of(kind))
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


@pytest.mark.parametrize("way", BLUEPRINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_acting_gives_the_statistics_that_are_learned_with(kind, way):
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
    # Learning masks the rows it has statistics of, which may be fewer than the observations.
    masked = network.mask_logits(columns[:2], tensors)
    np.testing.assert_allclose(masked, statistics[:2], rtol=1e-5, atol=1e-5)
