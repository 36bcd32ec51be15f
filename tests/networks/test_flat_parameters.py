from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import Blueprint, Conv, FlatParameters, ImpalaResNet, Mlp, RunningMoments, TargetNetwork, Vector
from algorithm.networks.flat_parameters import choose_dtype
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_acer, random_rollout_of, update


def two_groups(size: int = 3) -> tuple[dict[str, nn.Module], dict[str, TargetNetwork], dict[str, nn.Module]]:
    torch.manual_seed(size)
    policy, critic = nn.Sequential(nn.Linear(2, size), nn.Linear(size, 1)), nn.Linear(4, 2)
    return (
        {"policy": policy, "critic": critic},
        {"target": TargetNetwork(critic, nn.Linear(4, 2)), "average": TargetNetwork(policy[1], nn.Linear(size, 1))},
        {"returns": RunningMoments(), "states": RunningMoments(5)},
    )


def is_view(part: Tensor, flat: Tensor) -> bool:
    begin, end = flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()
    return begin <= part.data_ptr() and part.data_ptr() + part.numel() * part.element_size() <= end


def assert_laid_out(parameters: FlatParameters, groups, targets, statistics) -> None:
    """Check that every module is a view of its slice of the flat tensors, with consecutive parameters."""

    def assert_fills(tensors: list[Tensor], flat: Tensor) -> None:
        start = flat.data_ptr()
        for tensor in tensors:
            assert tensor.data_ptr() == start
            assert tensor.is_contiguous()
            start += tensor.numel() * tensor.element_size()
        assert start == flat.data_ptr() + flat.numel() * flat.element_size()

    for name, module in groups.items():
        where = parameters.group_slices[name]
        assert_fills(list(module.parameters()), parameters.vector[where])
        assert_fills([parameter.grad for parameter in module.parameters()], parameters.gradient[where])
    for name, copy in targets.items():
        assert_fills(list(copy.network.parameters()), parameters.target_vector[parameters.target_slices[name]])
        assert_fills([copy.vector], parameters.target_vector[parameters.target_slices[name]])
        assert_fills(list(copy.source.parameters()), copy.source_vector)
        assert is_view(copy.source_vector, parameters.vector)
    for name, module in statistics.items():
        assert_fills(list(module.buffers()), parameters.statistics[parameters.statistics_slices[name]])


def everything(parameters: FlatParameters) -> list[Tensor]:
    return [flat.clone() for flat, _ in parameters.named_slices().values()]


def randomize(parameters: FlatParameters) -> None:
    for flat, _ in parameters.named_slices().values():
        flat.normal_()


def test_modules_are_views_of_the_flat_tensors_also_after_loading():
    groups, targets, statistics = two_groups()
    before = [parameter.detach().clone() for module in groups.values() for parameter in module.parameters()]
    parameters = FlatParameters(groups, targets, statistics)
    assert_laid_out(parameters, groups, targets, statistics)
    assert torch.equal(parameters.vector, torch.cat([tensor.ravel() for tensor in before]))
    assert (parameters.vector.dtype, parameters.statistics.dtype) == (torch.float32, torch.float64)
    obs, target = torch.ones(3, 4), targets["target"].network
    assert torch.equal(target(obs), groups["critic"](obs)) and not target(obs).requires_grad
    groups["critic"](obs).sum().backward()
    where = parameters.group_slices["critic"]
    assert parameters.gradient[where].tolist() == [3.0] * 10
    assert not parameters.gradient[: where.start].any()
    other, values = FlatParameters(*two_groups()), torch.randn(9, 5).double()
    randomize(other)
    parameters.load(other.state())
    assert_laid_out(parameters, groups, targets, statistics)
    for own, saved in zip(everything(parameters), everything(other), strict=True):
        assert torch.equal(own, saved)
    other.statistics.zero_()
    parameters.load(other.state())
    statistics["states"].merge(values[:6])
    statistics["states"].merge(values[6:])
    np.testing.assert_allclose(statistics["states"].mean, values.mean(0))


@pytest.mark.parametrize("encoder", [Vector(), Conv((4, 3, 1), units=8), ImpalaResNet((4,), units=8)])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_updates_change_values_and_move_no_tensor(optimizer, encoder):
    role = Role(4, {"obs": ObsSpec((2, 9, 9), "uint8", high=255)}, ActionSpec(branches=(3,)))
    blueprint = Blueprint({"*": encoder}, body=Mlp(8), critic=Mlp(4))
    agent = make_acer(role, blueprint, optimizer=optimizer, reward_normalization="return_std")
    learner = Learner(agent, role, {}, max_step=None)
    groups = {name: group.module for name, group in agent.groups.items()}
    statistics = {"returns": learner.reward_normalizer.moments}
    before = everything(learner.parameters)
    assert_laid_out(learner.parameters, groups, agent.target_networks, statistics)
    for seed in range(3):
        rollout, rng = random_rollout_of(agent, role, seed), np.random.default_rng(seed)
        rollout = replace(rollout, obs={"obs": rng.integers(256, size=(7, 4, 2, 9, 9)).astype(np.uint8)})
        learner.observe(rollout)
        update(learner, rollout)
        assert_laid_out(learner.parameters, groups, agent.target_networks, statistics)
    assert learner.skipped_updates == 0
    for old, new in zip(before, everything(learner.parameters), strict=True):
        assert not torch.equal(old, new)


def make_linears(n: int, size: int = 2) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(size, size) for _ in range(n))


BODY, LAYERS = nn.Linear(2, 2), make_linears(3)


@pytest.mark.parametrize(
    ("groups", "targets", "message"),
    [
        ({"policy": BODY, "critic": nn.Sequential(BODY, nn.Linear(2, 1))}, {}, r"\['policy', 'critic'\]"),
        ({"policy": BODY}, {"average": TargetNetwork(BODY, nn.Linear(3, 3))}, "size mismatch|look like"),
        ({"policy": LAYERS}, {"ends": TargetNetwork(LAYERS[::2], make_linears(2))}, "contiguous"),
    ],
    ids=["a parameter of two groups", "a target of another shape", "a source that is not contiguous"],
)
def test_groups_and_targets_that_do_not_fit_are_rejected(groups, targets, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        FlatParameters(groups, targets, {})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda groups, targets, statistics: two_groups(7), "'policy' have 29 values where this network has 13"),
        (lambda groups, targets, statistics: (groups, {}, statistics), "target_networks 'target' are missing"),
        (
            lambda groups, targets, statistics: (groups, targets, {**statistics, "states": RunningMoments(6)}),
            "'states' have 13",
        ),
    ],
)
def test_the_state_of_another_network_is_rejected_by_name_without_changes(changed, message):
    parameters, other = FlatParameters(*two_groups()), FlatParameters(*changed(*two_groups()))
    randomize(other)
    before = everything(parameters)
    with pytest.raises(ValueError, match=message):
        parameters.load(other.state())
    for old, new in zip(before, everything(parameters), strict=True):
        assert torch.equal(old, new)


def test_a_parameter_used_twice_in_one_group_is_stored_once():
    layer = nn.Linear(2, 2)
    parameters = FlatParameters({"policy": nn.Sequential(layer, layer)}, {}, {})
    assert (len(parameters.vector), len(parameters.target_vector), len(parameters.statistics)) == (6, 0, 0)
    parameters.load(parameters.state())


def test_a_state_may_hold_more_names_than_are_needed():
    groups, targets, statistics = two_groups()
    fewer = FlatParameters({"policy": groups["policy"]}, {"average": targets["average"]}, {})
    more = FlatParameters(*two_groups())
    randomize(more)
    fewer.load(more.state())
    assert torch.equal(fewer.vector, more.vector[more.group_slices["policy"]])


def test_a_state_holds_everything_by_kind_and_name_and_is_a_copy():
    _, targets, statistics = parts = two_groups()
    parameters = FlatParameters(*parts)
    statistics["states"].merge(torch.randn(4, 5))
    parameters.target_vector.normal_()
    state = parameters.state()
    assert {kind: list(names) for kind, names in state.items()} == {
        "parameters": ["policy", "critic"],
        "target_networks": ["target", "average"],
        "statistics": ["returns", "states"],
    }
    target = torch.cat([number.ravel() for number in targets["target"].network.parameters()])
    assert torch.equal(state["target_networks"]["target"], target)
    assert state["statistics"]["states"][-1] == 4  # number of values
    before = {kind: {name: value.clone() for name, value in names.items()} for kind, names in state.items()}
    randomize(parameters)
    for kind, names in state.items():
        for name, value in names.items():
            assert torch.equal(value, before[kind][name])


@pytest.mark.parametrize("rate", [0.0, 0.005, 0.3, 0.9, 1.0])
def test_a_target_network_moves_by_the_rate_towards_its_source_only(rate):
    _, targets, _ = parts = two_groups()
    parameters = FlatParameters(*parts)
    randomize(parameters)
    vector, target_vector = parameters.vector.clone(), parameters.target_vector.clone()
    targets["target"].polyak_update(rate)
    where, source = parameters.target_slices["target"], vector[parameters.group_slices["critic"]]
    expected = target_vector[where].double() + rate * (source.double() - target_vector[where].double())
    torch.testing.assert_close(parameters.target_vector[where], expected.float(), rtol=1e-6, atol=1e-7)
    if rate in (0, 1):
        assert torch.equal(parameters.target_vector[where], [target_vector[where], source][int(rate)])
    assert torch.equal(parameters.vector, vector)
    assert torch.equal(parameters.target_vector[where.stop :], target_vector[where.stop :])


def test_a_target_network_shares_the_buffers_of_its_source():
    def network() -> nn.Module:
        return nn.ModuleDict({"moments": RunningMoments(3), "layer": nn.Linear(3, 2)})

    source, copy = network(), network()
    source["moments"].merge(torch.randn(4, 3))
    parameters = FlatParameters(
        {"policy": source}, {"average": TargetNetwork(source, copy)}, {"obs": source["moments"]}
    )
    assert copy["moments"].count == 4
    source["moments"].merge(torch.randn(5, 3))
    assert copy["moments"].count == 9
    parameters.load({**parameters.state(), "statistics": {"obs": torch.arange(7.0)}})
    assert copy["moments"].mean.tolist() == [0, 1, 2]
    assert copy["moments"].count == 6


def test_statistics_are_float64_if_the_device_has_it():
    assert choose_dtype("cpu", torch.float64) == choose_dtype("cuda:1", torch.float64) == torch.float64
    assert choose_dtype("mps", torch.float64) == choose_dtype("mps", torch.float32) == torch.float32
    assert choose_dtype("mps", torch.int64) == torch.int64
