"""The prediction model: its losses, the rows that they read, and the gradients that they add."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from algorithm.auxiliaries.prediction import Prediction
from algorithm.auxiliaries.settings import PredictionSettings
from algorithm.config.registry import build_object
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Conv, FrameStack, Gru, Mlp, Vector
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import (
    make_a2c,
    make_acer,
    make_ppo,
    make_reactor,
    make_role,
    make_sac,
    random_rollout,
    random_rollout_of,
    update,
)

LANES = 4
ONLY = {
    "transition": {"reward_coef": 0, "observation_coef": 0},
    "reward": {"transition_coef": 0, "observation_coef": 0},
    "observation": {"transition_coef": 0, "reward_coef": 0},
}
SPECS = {"picture": ObsSpec((3, 5, 6), "uint8", high=255.0), "obs": ObsSpec((3,)), "flags": ObsSpec((2,), "uint8")}


def make_learner(make=make_a2c, role=None, blueprint=None, auxiliaries=True, **settings) -> Learner:
    """Return a learner with a prediction model, whose target network differs from the agent's torso."""
    role = role or make_role(LANES)
    prediction = Prediction(PredictionSettings(**{"units": 8, "update_every": 1, **settings}))
    learner = Learner(make(role, blueprint), role, {"prediction": prediction} if auxiliaries else {}, None)
    torch.manual_seed(1)
    learner.parameters.target_vector += 0.1 * torch.randn_like(learner.parameters.target_vector)
    return learner


def to_tensors(rollout: Rollout) -> Rollout:
    return rollout.convert(torch.from_numpy)


def compute_loss(learner: Learner, rollout: Rollout):
    """Return the loss of the prediction model, and its metrics by name."""
    [loss] = learner.auxiliaries.compute_losses(to_tensors(rollout), None).values()
    prefix, metrics = "train/prediction_", learner.auxiliaries.metrics
    return loss, {name.removeprefix(prefix): value.item() for name, value in metrics.items()}


def make_image_rollout(seed=0, rows=6) -> Rollout:
    rng = np.random.default_rng(seed)
    rollout = random_rollout(rng, rows, LANES)
    return replace(
        rollout,
        obs={
            **rollout.obs,
            "picture": rng.integers(256, size=(rows + 1, LANES, 3, 5, 6), dtype=np.uint8),
            "flags": rng.integers(2, size=(rows + 1, LANES, 2), dtype=np.uint8),
        },
    )


def make_image_learner(**settings) -> Learner:
    blueprint = Blueprint({"picture": Conv((4, 3, 1), units=8), "*": Vector()}, body=Mlp(16))
    return make_learner(role=Role(LANES, SPECS, ActionSpec(branches=(3,))), blueprint=blueprint, **settings)


@pytest.mark.parametrize("seed", range(5))
def test_the_transition_loss_is_that_of_torch(seed):
    learner = make_learner(transition_kl=0.3, **ONLY["transition"])
    prediction = learner.auxiliaries.by_name["prediction"]
    rollout = to_tensors(random_rollout(np.random.default_rng(seed), 7, LANES))
    state, target = (
        learner.agent.features(rollout),
        prediction.target.network.unroll(rollout.obs, rollout.first, rollout.memory),
    )
    assert not torch.allclose(state, target)
    nll, kl = [], []
    for t in range(len(rollout)):
        for lane in range(LANES):
            if not rollout.first[t + 1, lane]:
                action = nn.functional.one_hot(rollout.raw_action[t, lane, 0].long(), 3)
                hidden = prediction.hidden(torch.cat((state[t, lane], action)))
                mean, raw_std = prediction.transition.linear(hidden).chunk(2)
                transition = Normal(mean, 0.1 + 0.9 * torch.sigmoid(raw_std))
                nll.append(-transition.log_prob(target[t + 1, lane]).mean())
                kl.append(kl_divergence(transition, Normal(0, 1)).mean())
    expected = torch.stack(nll).mean(), torch.stack(kl).mean()
    loss, metrics = compute_loss(learner, random_rollout(np.random.default_rng(seed), 7, LANES))
    assert [metrics["transition_nll"], metrics["transition_kl"]] == pytest.approx([*map(float, expected)], rel=1e-5)
    torch.testing.assert_close(loss, expected[0] + 0.3 * expected[1])


def test_the_std_of_a_transition_is_bounded():
    head = make_learner().auxiliaries.by_name["prediction"].transition
    for bias, limit in [(-40.0, 0.1), (40.0, 1.0)]:
        nn.init.constant_(head.linear.bias, bias)
        torch.testing.assert_close(head(torch.zeros(1, 8)).log_std.exp(), torch.full((1, 16), limit))


def test_the_loss_is_the_weighted_sum_of_its_parts():
    coefs = {"transition_coef": 2.0, "reward_coef": 3.0, "observation_coef": 0.5, "transition_kl": 0.1}
    loss, metrics = compute_loss(make_image_learner(**coefs), make_image_rollout())
    expected = (
        2 * (metrics["transition_nll"] + 0.1 * metrics["transition_kl"])
        + 3 * metrics["reward_error"]
        + 0.5 * metrics["observation_error"]
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("part", ONLY)
def test_a_part_without_weight_has_no_parameters(part):
    learner = make_learner(transition_kl=0.8, **ONLY[part])
    _, metrics = compute_loss(learner, random_rollout(np.random.default_rng(0), 6, LANES))
    assert all(name.startswith((part, "loss")) for name in metrics)
    trained = {
        name.partition(".")[0] for name, _ in learner.auxiliaries.modules["auxiliary/prediction"].named_parameters()
    }
    assert trained == ({part} if part == "observation" else {part, "hidden"})
    assert bool(learner.auxiliaries.target_networks) == (part == "transition")


def changes_with(learner, rollout, field, where):
    """Return whether the loss changes if a field of a rollout changes at one place."""
    changed = getattr(rollout, field).copy()
    changed[where] = (changed[where] + 1) % 3 if field == "raw_action" else changed[where] + 1
    return (
        compute_loss(learner, rollout)[0].item()
        != compute_loss(learner, replace(rollout, **{field: changed}))[0].item()
    )


@pytest.mark.parametrize("seed", range(6))
def test_each_part_reads_its_rows_only(seed):
    rollout = random_rollout(np.random.default_rng(seed), 6, LANES)
    places = list(np.ndindex(rollout.reward.shape))
    transition, reward = (make_learner(transition_kl=0.1, **ONLY[part]) for part in ("transition", "reward"))
    assert [changes_with(transition, rollout, "raw_action", place) for place in places] == [
        bool(rollout.same_episode[place]) for place in places
    ]
    assert [changes_with(reward, rollout, "reward", place) for place in places] == [
        bool(rollout.valid[place]) for place in places
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_decoder_and_its_statistics_ignore_bootstrap_rows(seed):
    learner, rollout = make_image_learner(**ONLY["observation"]), make_image_rollout(seed)
    bootstrap = ~rollout.valid
    assert bootstrap.any()
    changed = {name: value.copy() for name, value in rollout.obs.items()}
    for value in changed.values():
        value[:-1][bootstrap] += 1
        value[-1] += 1
    other = replace(rollout, obs=changed)
    assert compute_loss(learner, rollout)[1] == compute_loss(learner, other)[1]
    learner.observe(rollout)
    moments = learner.auxiliaries.by_name["prediction"].decoders["obs"].normalize.transform.moments
    rows = rollout.obs["obs"][:-1][rollout.valid]
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-4)


def test_bytes_are_divided_and_other_values_normalized():
    learner, rollout = make_image_learner(), make_image_rollout()
    learner.observe(rollout)
    decoders = learner.auxiliaries.by_name["prediction"].decoders
    obs = {name: torch.from_numpy(value[0]) for name, value in rollout.obs.items()}
    torch.testing.assert_close(decoders["picture"].normalize(obs["picture"]), obs["picture"].flatten(1) / 255)
    torch.testing.assert_close(decoders["flags"].normalize(obs["flags"]), obs["flags"].float())
    rows = rollout.obs["obs"][:-1][rollout.valid]
    expected = (rollout.obs["obs"][0] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(decoders["obs"].normalize(obs["obs"]), expected, rtol=1e-4)
    decoder, features = decoders["flags"], torch.randn(1, LANES, 16)
    expected = nn.functional.mse_loss(decoder.layers(features)[0], obs["flags"].float(), reduction="none").mean(-1)
    torch.testing.assert_close(decoder.compute_error(features, obs["flags"].unsqueeze(0))[0], expected)


@pytest.mark.parametrize("part", ONLY)
def test_the_gradient_reaches_the_torso_and_not_the_target(part):
    learner = make_learner(adaptive=False, transition_kl=0.8, **ONLY[part])
    rollout = to_tensors(random_rollout(np.random.default_rng(0), 6, LANES))
    features = learner.agent.policy.torso.unroll(rollout.obs, rollout.first, rollout.memory)
    [loss] = learner.auxiliaries.compute_losses(rollout, features).values()
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in learner.agent.policy.torso.parameters())
    assert all(each.grad.any() for each in learner.auxiliaries.modules["auxiliary/prediction"].parameters())
    assert all(parameter.grad.eq(0).all() for parameter in learner.agent.policy.heads.parameters())
    for target in learner.auxiliaries.target_networks.values():
        assert all(parameter.grad is None for parameter in target.network.parameters())


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_setting_decides_whether_the_gradient_has_to_agree_with_the_task(adaptive):
    assert make_learner(adaptive=adaptive).auxiliaries.adaptive_groups == (
        {"auxiliary/prediction"} if adaptive else set()
    )


def test_the_target_follows_the_torso():
    learner = make_learner(tau=0.25)
    rollout = random_rollout(np.random.default_rng(0), 6, LANES)
    target = learner.auxiliaries.target_networks["auxiliary/prediction/torso"]
    before = target.vector.clone()
    update(learner, rollout)
    torso = torch.cat([parameter.detach().flatten() for parameter in learner.agent.policy.torso.parameters()])
    torch.testing.assert_close(target.vector, before.lerp(torso, 0.25))


MEMORIES = {
    "none": Blueprint(body=Mlp(8)),
    "frames": Blueprint({"*": FrameStack(3, Vector())}, body=Mlp(8)),
    "gru": Blueprint(body=Mlp(8), memory=Gru(5)),
    "frames and gru": Blueprint({"*": FrameStack(3, Vector())}, body=Mlp(8), memory=Gru(5)),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("make", [make_a2c, make_acer, make_sac, make_reactor, make_ppo])
def test_a_torso_of_the_agents_structure_computes_the_agents_features(make, memory):
    role, blueprint = make_role(LANES), MEMORIES[memory]
    if make is make_reactor and "gru" in memory:
        blueprint = replace(blueprint, policy=Gru(4), critic=Gru(3))
    agent = make(role, blueprint)
    learner = Learner(agent, role, {"prediction": Prediction(PredictionSettings(update_every=1))}, None)
    rollout = random_rollout_of(agent, role)
    burn_in = max(agent.policy.torso.warmup_rows, 2) if agent.schedule.uses_replay and agent.state_size else 0
    replayed = replace(rollout, memory=rollout.memory[:, : agent.stored_state_size], burn_in=burn_in)
    for batch in [rollout, *([replayed] if burn_in else [])]:
        tensors = to_tensors(batch)
        for known in (learner.agent.features(tensors), learner.agent.features(tensors)[:-1]):
            inputs = learner.auxiliaries._make_inputs(tensors, known)
            target = learner.auxiliaries.target_networks["auxiliary/prediction/torso"].network
            with torch.no_grad():
                features = agent.features(tensors)
                torch.testing.assert_close(inputs.features, features)
                torch.testing.assert_close(inputs.row_features, features[:-1])
                for begin in (0, 1, 3):
                    torch.testing.assert_close(inputs.unroll(target, begin), features[begin:])
    update(learner, rollout if make is not make_ppo else learner.prepare(rollout))
    assert learner.skipped_updates == 0


def test_settings_that_learn_nothing_are_refused():
    coefs = dict.fromkeys(["transition_coef", "reward_coef", "observation_coef"], 0.0)
    with pytest.raises(UserError, match=r"auxiliaries.prediction: .* are all 0; at least one must be above 0"):
        build_object("auxiliaries", "prediction", PredictionSettings(**coefs))
    with pytest.raises(UserError, match="auxiliaries.prediction: the features are the observations, which no loss can"):
        make_learner(blueprint=Blueprint())
