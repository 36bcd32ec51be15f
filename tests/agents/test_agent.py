"""What agents have in common: memories, features, running statistics, means over valid rows, schedules, metrics."""

from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.agents.a2c import normalize_advantages
from algorithm.agents.agent import DataSchedule
from algorithm.agents.metrics import compute_explained_variance, mean_weights
from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, Gaussian, TanhGaussianFamily
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Residual, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import (
    a2c_settings,
    make_a2c,
    make_acer,
    make_ppo,
    make_reactor,
    make_role,
    make_sac,
    random_rollout,
)

MAKE_AGENT = {
    "acer": make_acer,
    "acer, full": partial(make_acer, trust_region="full"),
    "sac": make_sac,
    "reactor": make_reactor,
    "a2c": make_a2c,
    "ppo": make_ppo,
}
COLUMNS = 4
WITH_MEMORY = Blueprint(body=Mlp(8), memory=Gru(6))
CONTINUOUS = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(continuous=2))


@pytest.fixture(params=MAKE_AGENT)
def make_agent(request):
    return MAKE_AGENT[request.param]


def make_rollout(agent):
    """Return a rollout as the loss of an agent receives it."""
    rollout = random_rollout(np.random.default_rng(0)).convert(torch.from_numpy)
    rollout = replace(rollout, memory=torch.randn(COLUMNS, agent.state_size))
    with torch.no_grad():
        return rollout if agent.schedule.epochs is None else agent.prepare(rollout)


def test_the_loss_continues_from_the_memory_of_the_rollout_and_reports_its_features(make_agent):
    agent = make_agent(make_role(COLUMNS), WITH_MEMORY)
    torch.manual_seed(0)
    rollout = make_rollout(agent)
    features = agent.loss(rollout)[1].features
    if not rollout.targets:
        torch.testing.assert_close(agent.features(rollout), features.detach())
        assert not agent.features(rollout).requires_grad
    memory = rollout.memory
    assert len(features) == len(rollout) + (not rollout.targets)  # minibatches have no row after the last one
    for row in range(len(features)):  # one step after the other, from a zero memory at the start of an episode
        memory = memory * ~rollout.first[row].unsqueeze(-1)
        encoded = agent.encode({"obs": rollout.obs["obs"][row]})
        output, memory = agent.policy.torso.memory.step(encoded, memory)
        torch.testing.assert_close(features[row], output)


@pytest.mark.parametrize("make", [make_acer, make_sac, make_reactor])
def test_burn_in_needs_a_memory(make):
    make(make_role(COLUMNS), WITH_MEMORY, burn_in_step=2)
    with pytest.raises(ValueError, match="burn_in_step is 2, but the network has no memory"):
        make(make_role(COLUMNS), burn_in_step=2)


def test_running_statistics_include_valid_rows_only(make_agent):
    agent = make_agent(make_role(COLUMNS), Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(8)))
    rollout = random_rollout(np.random.default_rng(0))
    rows = rollout.obs["obs"][:-1][rollout.valid].astype(np.float64)
    assert not rollout.valid.all()
    agent.observe(rollout)
    ((moments,),) = agent.running_statistics().values()
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-6)


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("name", [name for name in MAKE_AGENT if name != "acer, full"])
def test_batch_statistics_include_the_rows_only_that_are_learned_from(name, has_memory):
    """As states, or as the next states of rows that do not terminate; burn-in does not count."""
    memory = Gru(6) if has_memory else None
    has_burn_in = has_memory and name in ("acer", "sac", "reactor")
    agent = MAKE_AGENT[name](
        make_role(COLUMNS), Blueprint(body=Residual(4, 1), memory=memory), **{"burn_in_step": 2} if has_burn_in else {}
    )
    rollout = make_rollout(agent)
    rollout.burn_in = burn_in = 2 if has_burn_in else 0
    agent.loss(rollout)
    norm = agent.policy.torso.body.input_norm
    batch_mean = norm.increment[: norm.size] / norm.momentum
    valid, alive = rollout.valid[burn_in:], rollout.alive[burn_in:]
    counts = [
        (t < len(valid) and valid[t, b]) or (t > 0 and not rollout.targets and valid[t - 1, b] and alive[t - 1, b])
        for t in range(len(valid) + 1)
        for b in range(COLUMNS)
    ]
    assert not all(counts)
    rows = rollout.obs["obs"][burn_in:].flatten(0, 1)[torch.tensor(counts)]
    torch.testing.assert_close(batch_mean, rows.mean(0))


# No two of them are equal.
SCHEDULE = {"rollout_length": 5, "sequence_length": 7, "batch_size": 3, "replay_ratio": 1.5, "learning_starts": 11}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("acer", {"replay_count_distribution": "poisson", "replays": 32.0}),  # `replays` has no effect with a ratio
        ("sac", {"replay_count_distribution": "fixed", "replays": 0.0}),
        ("reactor", {"replay_count_distribution": "fixed", "replays": 0.0}),
    ],
)
def test_the_schedule_of_an_agent_with_a_replay_follows_the_settings(name, others):
    blueprint = Blueprint(encoders={"*": FrameStack(3, Vector())}, body=Mlp(4), memory=Gru(2))
    changes = {"on_policy_updates": False} if name == "acer" else {}
    schedule = MAKE_AGENT[name](blueprint=blueprint, burn_in_step=4, **changes, **SCHEDULE).schedule
    # A stack of 3 frames needs the 2 rows before a sequence, in addition to the burn-in of the memory.
    expected = {**SCHEDULE, **others, "on_policy_updates": False, "burn_in": 6, "warmup_rows": 2}
    assert asdict(schedule) == {**expected, "uses_replay": True, "epochs": None, "minibatches": 1}


@pytest.mark.parametrize(
    ("make", "changes"), [(make_a2c, {"epochs": None, "minibatches": 1}), (make_ppo, {"epochs": 3, "minibatches": 7})]
)
def test_the_schedule_of_an_agent_without_a_replay_follows_the_settings(make, changes):
    given = changes if make is make_ppo else {}
    schedule = make(rollout_length=5, **given).schedule
    assert schedule == DataSchedule(rollout_length=5, uses_replay=False, **changes)


@pytest.mark.parametrize(
    ("make", "groups", "target_networks"),
    [
        (make_acer, ["acer"], ["average"]),
        (make_sac, ["critic", "policy", "alpha"], ["target"]),
        (partial(make_sac, target="none", use_auto_alpha=False), ["critic", "policy"], []),
        (make_reactor, ["reactor"], ["target"]),
        (make_a2c, ["actor_critic"], []),
        (make_ppo, ["actor_critic"], []),
    ],
)
def test_checkpoints_name_the_groups_and_the_target_networks(make, groups, target_networks):
    agent = make()
    assert (list(agent.groups), list(agent.target_networks)) == (groups, target_networks)


@pytest.mark.parametrize(("tanh_squash", "family"), [(False, ClippedGaussianFamily), (True, TanhGaussianFamily)])
@pytest.mark.parametrize("make", [make_acer, make_a2c, make_ppo])
def test_tanh_squash_selects_how_actions_are_bounded(make, tanh_squash, family):
    assert type(make(CONTINUOUS, tanh_squash=tanh_squash).family) is family


def explained(valid, target, value) -> float:
    weights = mean_weights(valid, torch.ones(valid.shape[1], dtype=target.dtype))
    return compute_explained_variance(weights, target, value).item()


@pytest.mark.parametrize(
    ("value", "expected"), [([1.0, 2, 3, 4], 1.0), ([2.5] * 4, 0.0), ([11.0, 12, 13, 14], 1.0), ([4.0, 3, 2, 1], -3.0)]
)
def test_known_explained_variances(value, expected):
    """Exact values, constant values, values with a constant error, and values of the opposite order."""
    target, value = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([value])
    assert explained(torch.ones(1, 4, dtype=torch.bool), target, value) == pytest.approx(expected)


def test_targets_that_do_not_vary_have_no_variance_to_explain():
    """Their variance is 0, or above it by the rounding of their mean."""
    for target in (np.full((7, 3), 0.1), np.full((7, 3), 1e6 / 3), np.zeros((7, 3))):
        target = torch.from_numpy(target.astype(np.float32))
        assert explained(torch.ones(7, 3, dtype=torch.bool), target, torch.randn(7, 3)) == 0.0


def test_without_valid_rows_it_is_0():
    target = torch.randn(3, 2)
    assert explained(torch.zeros(3, 2, dtype=torch.bool), target, target) == 0.0


@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
@pytest.mark.parametrize("make", [make_a2c, make_ppo])
def test_the_std_of_actions_is_that_of_the_settings(make, std):
    agent = make(CONTINUOUS, Blueprint(body=Mlp(8), memory=Gru(4)), std=std, std_init=0.25, std_min=0.125)
    statistics, _ = agent.policy({"obs": torch.randn(6, 3)}, torch.randn(6, 4))
    torch.testing.assert_close(statistics[:, 2:].exp(), torch.full((6, 2), 0.25), rtol=0.1, atol=0)
    assert isinstance(agent.family(statistics), FixedStdGaussian if std == "fixed" else Gaussian)
    (gradient,) = torch.autograd.grad(
        statistics[:, 2:].sum() + 0 * statistics.sum(), [agent.policy.heads.linear.weight], allow_unused=True
    )
    assert bool(gradient.ne(0).any()) == (std == "state_dependent")


def test_advantages_have_mean_0_and_std_1_over_valid_rows():
    advantage, valid = torch.randn(5, 4).double() * 7 + 3, torch.rand(5, 4) < 0.7
    normalized = normalize_advantages(advantage, valid)
    assert normalized[valid].mean().item() == pytest.approx(0, abs=1e-12)
    assert normalized[valid].std().item() == pytest.approx(1)
    assert normalize_advantages(torch.full((5, 4), 2.0), valid)[valid].eq(0).all()  # not NaN


@pytest.mark.parametrize("count", [0, 1])
def test_advantages_of_fewer_than_two_valid_rows_stay_as_they_are(count):
    advantage, valid = torch.randn(5, 4), torch.arange(20).reshape(5, 4) < count
    assert normalize_advantages(advantage, valid).equal(advantage)


def test_std_init_is_above_std_min():
    with pytest.raises(ValueError, match="std_init 0.5 must be above std_min 0.5, unless std is fixed"):
        a2c_settings(std_init=0.5, std_min=0.5)
    a2c_settings(std="fixed", std_init=0.5, std_min=0.5)
