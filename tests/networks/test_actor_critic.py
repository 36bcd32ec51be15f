from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import ActorCritic, Blueprint, Chain, FlatParameters, FrameStack, Mlp, Vector
from algorithm.specs import ObsSpec
from tests.fakes import RunningSum

ONE = {"obs": ObsSpec((3,))}
SEVERAL = {"camera": ObsSpec((2, 3), "uint8"), "speed": ObsSpec((4,)), "place": ObsSpec((2,))}
ACTIONS = 5


class Doubling:
    """A factory of an encoder, or of layers, without a numpy form."""

    def __call__(self, spec: ObsSpec | int) -> nn.Module:
        encoder = DoublingEncoder()
        encoder.size = spec if isinstance(spec, int) else spec.shape[0]
        return encoder


class DoublingEncoder(nn.Module):
    def forward(self, obs: Tensor) -> Tensor:
        return 2 * obs


WITHOUT_NUMPY = Chain(Mlp(6), Doubling())
BLUEPRINTS = {
    "no body": (Blueprint(), ONE),
    "relu": (Blueprint(body=Mlp(16, 8)), ONE),
    "tanh": (Blueprint(body=Mlp(16, activation="tanh")), ONE),
    "policy layers": (Blueprint(body=Mlp(8), policy=Mlp(7, 6)), ONE),
    "critic layers": (Blueprint(body=Mlp(8), critic=Mlp(7)), ONE),
    "no body, both layers": (Blueprint(policy=Mlp(7), critic=Mlp(6, activation="tanh")), ONE),
    "several observations": (Blueprint(body=Mlp(16)), SEVERAL),
    "two encoders": (Blueprint(encoders={"cam*": Vector(), "*": Vector()}, body=Mlp(16)), SEVERAL),
    "scaled vectors": (Blueprint(encoders={"sp*": Vector((1.0, 2.0, 0.5, 3.0)), "*": Vector(0.1)}), SEVERAL),
    "normalised vectors": (Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(16)), SEVERAL),
    "an encoder without numpy": (Blueprint(encoders={"*": Doubling()}, body=Mlp(16)), ONE),
    "a body without numpy": (Blueprint(body=WITHOUT_NUMPY), ONE),
    "policy layers without numpy": (Blueprint(policy=WITHOUT_NUMPY), ONE),
    "memory": (Blueprint(body=Mlp(8), memory=RunningSum), ONE),
    "memory without body": (Blueprint(memory=RunningSum, policy=Mlp(7)), SEVERAL),
    "stacked frames": (Blueprint(encoders={"cam*": FrameStack(4, Vector(0.1)), "*": Vector()}, body=Mlp(8)), SEVERAL),
    "stacked frames and memory": (Blueprint(encoders={"*": FrameStack(3, Vector(0.1))}, memory=RunningSum), SEVERAL),
}


def make(blueprint: Blueprint, specs) -> ActorCritic:
    torch.manual_seed(0)
    network = ActorCritic(blueprint, specs, statistics_size=ACTIONS, n_values=ACTIONS)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    network.torso.observe(observations(specs, 5, 4), np.ones((5, 4), bool))
    return network


def observations(specs, *rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: rng.integers(256, size=(*rows, *spec.shape)).astype(np.uint8)
        if spec.dtype == "uint8"
        else rng.normal(size=(*rows, *spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }


def tensors(obs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in obs.items()}


def memories(network: ActorCritic, lanes: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(lanes, network.state_size)).astype(np.float32)


def assert_acts_as_the_module(network: ActorCritic, specs) -> np.ndarray:
    for lanes in (1, 6):
        obs, memory = observations(specs, lanes), memories(network, lanes)
        before = {name: value.copy() for name, value in obs.items()}, memory.copy()
        statistics, after = network.act(obs, memory)
        expected, expected_after = network(tensors(obs), torch.from_numpy(memory))
        scale = max(1, expected.abs().max().item())
        np.testing.assert_allclose(statistics / scale, expected.detach() / scale, rtol=0, atol=1e-6)
        np.testing.assert_allclose(after, expected_after.detach(), rtol=1e-6)
        assert (statistics.dtype, statistics.shape) == (np.float32, (lanes, ACTIONS))
        assert after.shape == memory.shape
        np.testing.assert_array_equal(memory, before[1])
        for name, value in obs.items():
            np.testing.assert_array_equal(value, before[0][name])
    return statistics


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_acting_equals_the_module_and_follows_its_parameters(name):
    blueprint, specs = BLUEPRINTS[name]
    network = make(blueprint, specs)
    assert (network.numpy() is None) == any(word in name for word in ("numpy", "memory", "frames"))
    parameters = FlatParameters({"policy": network}, {}, {})
    first = assert_acts_as_the_module(network, specs)
    parameters.vector.add_(0.1 * torch.randn_like(parameters.vector))
    second = assert_acts_as_the_module(network, specs)
    parameters.load({"parameters": {"policy": torch.randn_like(parameters.vector)}})
    third = assert_acts_as_the_module(network, specs)
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)


def test_the_first_policy_is_close_to_uniform():
    torch.manual_seed(0)
    network = ActorCritic(Blueprint(body=Mlp(64, 64)), ONE, statistics_size=ACTIONS, n_values=ACTIONS)
    statistics = network(tensors(observations(ONE, 100)), torch.zeros(100, 0))[0]
    assert statistics.abs().max() < 0.1


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_unrolling_equals_acting_row_by_row_with_memory_reset_at_first_rows(name):
    blueprint, specs = BLUEPRINTS[name]
    network = make(blueprint, specs)
    obs, first = observations(specs, 7, 3), np.random.default_rng(3).random((7, 3)) < 0.3
    memory = start = memories(network, 3)
    rows = []
    for t in range(7):
        statistics, memory = network.act(
            {key: value[t] for key, value in obs.items()}, np.where(first[t][:, None], np.float32(0), memory)
        )
        rows.append(statistics)
    features = network.torso.unroll(tensors(obs), torch.from_numpy(first), torch.from_numpy(start))
    unrolled = network.compute_outputs(features)[..., :ACTIONS].detach().numpy()
    scale = np.abs(unrolled).max()
    np.testing.assert_allclose(np.stack(rows) / scale, unrolled / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BLUEPRINTS)
@pytest.mark.parametrize("burn_in", [1, 4])
def test_burn_in_equals_continuing_from_the_same_rows(name, burn_in):
    blueprint, specs = BLUEPRINTS[name]
    network = make(blueprint, specs)
    obs, first = tensors(observations(specs, 7, 3)), torch.rand(7, 3) < 0.3
    memory = torch.from_numpy(memories(network, 3))
    features = network.torso.unroll(obs, first, memory)
    after = network.torso.unroll(obs, first, memory, burn_in)
    torch.testing.assert_close(after, features[burn_in:])


def test_burn_in_rows_have_no_gradient():
    network = make(Blueprint(memory=RunningSum), ONE)
    obs = {"obs": torch.randn(6, 2, 3, requires_grad=True)}
    memory = torch.zeros(2, 3, requires_grad=True)
    network.torso.unroll(obs, torch.zeros(6, 2, dtype=torch.bool), memory, burn_in=2).sum().backward()
    gradient = obs["obs"].grad
    assert not gradient[:2].any()
    assert gradient[2:].all()
    assert memory.grad is None


def test_an_observation_uses_the_first_encoder_whose_pattern_matches():
    blueprint = Blueprint(encoders={"sp*": Doubling(), "*": Vector()})
    network = make(blueprint, SEVERAL)
    obs = tensors(observations(SEVERAL, 2))
    expected = torch.cat([obs["camera"].flatten(1).float(), 2 * obs["speed"], obs["place"]], -1)
    torch.testing.assert_close(network.torso.encode(obs), expected)


def test_vectors_are_scaled_component_by_component():
    network = make(Blueprint(encoders={"speed": Vector((1.0, 2.0, 0.5, 3.0)), "*": Vector(0.1)}), SEVERAL)
    obs = tensors(observations(SEVERAL, 2))
    speed = obs["speed"] * torch.tensor([1.0, 2.0, 0.5, 3.0])
    expected = torch.cat([0.1 * obs["camera"].flatten(1).float(), speed, 0.1 * obs["place"]], -1)
    torch.testing.assert_close(network.torso.encode(obs), expected)


def test_a_dry_step_does_not_change_the_network():
    network = ActorCritic(Blueprint(body=lambda size: Normalized(size)), ONE, 2, 2)
    network.torso.body.norm.eval()  # a frozen part
    before = [value.clone() for value in network.state_dict().values()]
    network.run_dry_step(ONE)
    assert [module.training for module in (network, network.torso.body, network.torso.body.norm)] == [True, True, False]
    assert all(torch.equal(one, other) for one, other in zip(before, network.state_dict().values(), strict=True))


class Normalized(nn.Module):
    """Layers with batch statistics, which a single row does not have in training."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.norm, self.other = size, nn.BatchNorm1d(size), nn.BatchNorm1d(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.norm(x))
