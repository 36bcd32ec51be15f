"""The operations of captured updates, on a device without values: none is on the CPU, and none reads a value."""

from __future__ import annotations

import gc

import pytest
import torch

from algorithm.config.variants import read_variant
from algorithm.config.yaml_layers import load_defaults
from algorithm.networks.precision import Placement
from algorithm.parts.env_folder import find_folder
from algorithm.parts.user_code import load_blueprint
from algorithm.rollout import Rollout
from algorithm.training import graph_backend
from algorithm.training.capturing_learner import CapturingLearner, find_obstacle
from tests.builders import make_sac
from tests.captured_cases import LANES, MAX_STEP, every_case, make_case, make_role, make_rollouts
from tests.recording import CheckingBackend

META = torch.device("meta")
PLACEMENT = Placement(learning=META, acting=META)
UPDATES = 6  # two of each phase: a warm-up, and one that is captured


@pytest.fixture(autouse=True)
def few_warm_ups(monkeypatch):
    monkeypatch.setattr(graph_backend, "WARM_UPS", 1)


def make_on_meta_device(make=lambda: make_case("plain")) -> tuple[CapturingLearner, list[Rollout], CheckingBackend]:
    """Return a learner whose tensors have no values."""
    backend = CheckingBackend()
    with META:
        agent, role = make()
        learner = CapturingLearner(agent, role, {}, MAX_STEP, PLACEMENT, backend=backend)
    return learner, make_rollouts(agent, role, UPDATES), backend


def assert_captured(learner: CapturingLearner, rollouts: list[Rollout], backend: CheckingBackend) -> None:
    """Make updates, and assert that all parts of those of all phases have been captured."""
    for rollout in rollouts:
        report = learner.compute_gradients(rollout)
        learner.apply_gradients()
        assert all(value.device == META for value in report.compute_metrics().values())
    phases = {learner.agent.find_phase(update) for update in range(1, UPDATES + 1)}
    assert len(backend.sizes) == 3 * len(phases) and min(backend.sizes) > 10
    gc.collect()
    assert len(backend.inputs) > 10
    n_freed = sum(memory.expired() for memory in backend.inputs)
    assert not n_freed, f"{n_freed} inputs of captured functions are freed"


@every_case
def test_all_operations_of_an_update_are_on_the_device_and_read_no_values(case):
    assert_captured(*make_on_meta_device(lambda: make_case(case)))


@pytest.mark.parametrize("folder", ["mujoco/half_cheetah", pytest.param("mujoco/humanoid", marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", ["sac", "flash", "flash_small", "crossq"])
def test_updates_of_variants_are_captured(folder, variant):
    source = find_folder(folder)
    tree = read_variant(source / "config.yaml", variant)
    blueprint = load_blueprint(source, "nn.py", tree.get("nn_config", {}))
    changes = {**load_defaults()["sac_config"], **tree.get("sac_config", {}), "batch_size": LANES}
    learner, rollouts, backend = make_on_meta_device(lambda: (make_sac(make_role(), blueprint, **changes), make_role()))
    assert find_obstacle(learner.agent, {}) is None
    assert_captured(learner, rollouts, backend)


def test_a_tensor_on_the_host_is_found():
    learner, rollouts, backend = make_on_meta_device()
    scale, ones = learner.reward_normalizer.scale, torch.ones(())  # a scalar, with which torch can multiply
    learner.reward_normalizer.scale = lambda reward: scale(reward) * ones
    with pytest.raises(AssertionError, match="has a tensor on cpu"):
        assert_captured(learner, rollouts, backend)


def test_a_tensor_that_is_freed_after_it_has_been_captured_is_found():
    learner, rollouts, backend = make_on_meta_device()
    scale, factors = learner.reward_normalizer.scale, [torch.ones(LANES, device=META) for _ in rollouts]
    learner.reward_normalizer.scale = lambda reward: scale(reward) * factors.pop()
    with pytest.raises(AssertionError, match="inputs of captured functions are freed"):
        assert_captured(learner, rollouts, backend)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda reward: reward * torch.tensor(2.0, device=reward.device), "has a tensor on cpu|values on the host"),
        (lambda reward: reward * torch.as_tensor([1.0] * LANES).to(reward.device), "tensor on cpu|values on the host"),
        (lambda reward: reward + reward[reward > 0].sum(), "depends on values|nonzero"),
        (lambda reward: reward if reward.sum() > 0 else -reward, "cannot be called on meta|depends on values"),
        (lambda reward: reward * reward.nonzero().sum(), "depends on values"),
        (lambda reward: reward[torch.arange(len(reward))], "has a tensor on cpu"),
        (lambda reward: reward[[*range(len(reward))]], "has a tensor on cpu|values on the host"),
    ],
)
def test_operations_for_which_a_device_waits_are_found(change, message, monkeypatch):
    monkeypatch.setattr(graph_backend, "WARM_UPS", 0)
    learner, rollouts, backend = make_on_meta_device()
    scale = learner.reward_normalizer.scale
    learner.reward_normalizer.scale = lambda reward: change(scale(reward))
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError), match=message):
        assert_captured(learner, rollouts, backend)
