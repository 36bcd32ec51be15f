from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.auxiliaries.episodic import Episodic, compute_keys
from algorithm.auxiliaries.settings import EpisodicSettings
from algorithm.config.loader import check_effects, resolve
from algorithm.config.sections import ReplayConfig
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.parts.components_builder import compute_agent_replay_size
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests import builders

ENDS = ("running", "termination", "truncation")


def make_learner(role: Role | None = None, agent=None, **changes) -> Learner:
    role = role or builders.make_role()
    agent = agent or builders.make_acer(role)
    return Learner(agent, role, {"episodic": Episodic(EpisodicSettings(**changes))}, None)


def record(learner: Learner, rollout: Rollout) -> np.ndarray:
    """Return the stored bonus [T, B]."""
    return learner.record(rollout).records["episodic"]


def make_lane(steps: list[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Return the rows of a lane: states [R], `first` [R], and the states of each episode.

    Args:
        steps: The state of each row, and the end that follows it; a truncation is followed by one more row of the
            episode, its last observation.
    """
    states, first, episodes, starts = [], [], [[]], True
    truncated = False
    for state, end in steps:
        if starts:
            episodes.append([])
        states.append(state)
        first.append(starts)
        episodes[-1].append(state)
        starts = truncated or end == "termination"
        truncated = end == "truncation" and not starts
    return np.array(states), np.array(first), episodes[1:]


def count_by_loop(episodes: list[list[int]], bonus: str) -> np.ndarray:
    """Return the bonus of each row but the last one of a lane, from its episodes."""
    bonuses = []
    for episode in episodes:
        visits = Counter(episode[:1])
        for state in episode[1:]:
            visits[state] += 1
            bonuses.append(visits[state] ** -0.5 if bonus == "inverse_sqrt" else float(visits[state] == 1))
        bonuses.append(0.0)  # its successor belongs to the next episode
    return np.array(bonuses[:-1], np.float32)


def cut_lane(states, first, lane: int, begin: int, end: int, continues: bool) -> Rollout:
    """Return rows `begin` to `end` of a lane as a collected rollout of one column."""
    rows = end - begin
    template = builders.random_rollout(np.random.default_rng(0), rows, 1)
    obs = np.repeat(states[begin : end + 1, None, None].astype(np.float32), 3, -1)
    return replace(
        template,
        obs={"obs": obs},
        first=first[begin : end + 1, None],
        alive=np.ones((rows, 1), bool),
        lane=np.array([lane]),
        continues_previous=np.array([continues]),
    )


LANE = st.lists(st.tuples(st.integers(-2, 3), st.sampled_from(ENDS)), min_size=13, max_size=40).map(make_lane)
BONUSES = st.sampled_from(["inverse_sqrt", "first_visit"])


@settings(max_examples=60, deadline=None)
@given(LANE, BONUSES, st.data())
def test_rollouts_of_any_length_have_the_bonus_of_a_loop_over_episodes(lane, bonus, data):
    states, first, episodes = lane
    learner, total = make_learner(bonus=bonus), len(states) - 1
    inner = data.draw(st.lists(st.integers(1, total - 1), unique=True, max_size=8).map(sorted))
    cuts = [0, *inner, total]
    found = [
        record(learner, cut_lane(states, first, 0, begin, end, begin > 0))
        for begin, end in zip(cuts[:-1], cuts[1:], strict=True)
    ]
    assert all(part.dtype == np.float32 for part in found)
    np.testing.assert_allclose(np.concatenate(found)[:, 0], count_by_loop(episodes, bonus), rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(LANE, min_size=3, max_size=3), st.permutations(range(9)))
def test_columns_of_several_lanes_and_of_one_lane_in_order(lanes, order):
    rows = 4
    columns = {
        (lane, part): cut_lane(states, first, lane, rows * part, rows * (part + 1), part > 0)
        for lane, (states, first, _) in enumerate(lanes)
        for part in range(3)
    }
    lane_of_column = [number % 3 for number in order]
    parts = [lane_of_column[:number].count(lane) for number, lane in enumerate(lane_of_column)]
    keys = list(zip(lane_of_column, parts, strict=True))
    bonus = record(make_learner(), Rollout.join_columns([columns[key] for key in keys]))
    for lane, (_, _, episodes) in enumerate(lanes):
        found = np.concatenate([bonus[:, keys.index((lane, part))] for part in range(3)])
        np.testing.assert_allclose(found, count_by_loop(episodes, "inverse_sqrt")[: 3 * rows], rtol=1e-6)


def test_a_break_in_the_middle_of_an_episode_starts_an_empty_memory():
    states, first, _ = make_lane([(1, "running")] * 13)
    learner = make_learner()
    record(learner, cut_lane(states, first, 0, 0, 4, False))
    after_break = record(learner, cut_lane(states, first, 0, 8, 12, False))
    np.testing.assert_allclose(after_break[:, 0], [n**-0.5 for n in (2, 3, 4, 5)], rtol=1e-6)
    continued = record(learner, cut_lane(states, first, 0, 4, 8, True))
    np.testing.assert_allclose(continued[:, 0], [n**-0.5 for n in (6, 7, 8, 9)], rtol=1e-6)


def test_keys_are_equal_for_equal_rows_only():
    rng = np.random.default_rng(0)
    image = rng.integers(2, size=(40, 5, 1, 2, 2), dtype=np.uint8)
    vector = rng.integers(2, size=(40, 5, 2)).astype(np.float32)
    keys = compute_keys([image, vector], None)
    assert keys.shape == (40, 5) and keys.dtype == np.int64
    rows = [(*image[t, b].ravel(), *vector[t, b]) for t, b in np.ndindex(keys.shape)]
    assert len(set(rows)) < len(rows)
    assert len(set(zip(rows, keys.ravel().tolist(), strict=True))) == len(set(rows)) == len(set(keys.ravel().tolist()))


@pytest.mark.parametrize(
    ("cell_size", "one", "other", "equal"),
    [
        (None, 0.0, -0.0, True),
        (None, 1.0, 1.0 + 2**-23, False),
        (0.5, 1.0, 1.2, True),
        (0.5, 1.0, 1.3, False),
        (0.5, -0.1, 0.1, True),
        (1e-3, 3e38, -3e38, False),
        (0.1, 0.0, 1.0, False),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_floats_are_equal_within_a_cell(cell_size, one, other, equal):
    keys = compute_keys([np.array([[[one]], [[other]]], np.float32)], cell_size)
    assert (keys[0, 0] == keys[1, 0]) == equal


def test_integers_are_not_rounded():
    keys = compute_keys([np.arange(256, dtype=np.uint8)[:, None, None]], 10.0)
    assert len(np.unique(keys)) == 256


@pytest.mark.parametrize(("pattern", "varying"), [("*", "a"), ("ab", None), ("a*", "a"), ("image*", None)])
def test_observations_that_match_the_pattern_are_counted_but_never_the_mask(pattern, varying):
    specs = {"a": ObsSpec((1,)), "ab": ObsSpec((1,)), "image": ObsSpec((1, 2, 2), "uint8"), ACTION_MASK: ObsSpec((3,))}
    role = Role(1, specs, ActionSpec(branches=(3,)))
    auxiliary = Episodic(EpisodicSettings(observations=pattern))
    auxiliary.build(builders.make_acer(), role)
    rollout = builders.random_rollout(np.random.default_rng(0), 4, 1)
    obs = {name: np.zeros((5, 1, *spec.shape), spec.dtype) for name, spec in specs.items()}
    obs["a"][:, 0, 0] = obs[ACTION_MASK][:, 0, 0] = range(5)
    rollout = replace(rollout, obs=obs, first=np.arange(5)[:, None] == 0, continues_previous=np.array([False]))
    bonus = auxiliary.record(rollout, None)[:, 0]
    np.testing.assert_allclose(bonus, 1 if varying else [2**-0.5, 3**-0.5, 4**-0.5, 5**-0.5], rtol=1e-6)


def make_collected(rows: int = 12, columns: int = 4, seed: int = 0) -> Rollout:
    """Return a rollout with every kind of boundary whose observations repeat."""
    rng = np.random.default_rng(seed)
    rollout = builders.random_rollout(rng, rows, columns)
    return replace(rollout, obs={"obs": rng.integers(2, size=(rows + 1, columns, 3)).astype(np.float32)})


@pytest.mark.parametrize("memory", ["counts", "embeddings"])
def test_bonuses_of_later_rollouts_are_the_same_after_restoring(memory):
    learner, twin = make_learner(memory=memory), make_learner(memory=memory)
    for seed in range(3):
        learner.record(make_collected(seed=seed))
    learner.grow(6)
    twin.grow(6)
    twin.parameters.load(learner.parameters.state())
    twin.restore(learner.state())
    later = make_collected(columns=6, seed=3)
    np.testing.assert_array_equal(record(twin, later), record(learner, later))
    assert all(twin.state()[name].equal(value) for name, value in learner.state().items())


def test_a_checkpoint_without_episodes_is_an_error_of_one_line():
    saved = make_learner(memory="embeddings", features="agent")
    message = "no saved episodes of auxiliaries.episodic with memory counts: train a new run instead"
    with pytest.raises(ValueError, match=message):
        make_learner().restore(saved.state())
    with pytest.raises(ValueError, match=message):
        make_learner().restore(Learner(builders.make_acer(), builders.make_role(), {}, None).state())


def test_the_memory_budget_counts_the_stored_bonus():
    config, role = ReplayConfig(**{**builders.read_defaults("replay_config"), "capacity": 1000}), builders.make_role()
    learner = make_learner(role)
    without = compute_agent_replay_size(config, learner.agent, role, 0)
    with_bonus = compute_agent_replay_size(config, learner.agent, role, learner.auxiliaries.n_records)
    assert with_bonus.rows == without.rows
    assert with_bonus.bytes == without.bytes + 4 * without.rows


def test_the_bonus_is_added_to_the_reward_after_the_burn_in_and_not_to_the_stored_one():
    role = builders.make_role()
    agent = builders.make_acer(role, Blueprint(body=Mlp(8), memory=Gru(8)), burn_in_step=2, reward_scale=2.0)
    learner = make_learner(role, agent, strength=0.5)
    rollout = learner.record(builders.random_rollout_of(agent, role))
    stored = rollout.reward.copy()
    batch = replace(rollout, burn_in=2, memory=rollout.memory).convert(torch.from_numpy)
    learner._transform_rewards(batch)
    added = batch.reward.numpy() - 2 * stored
    np.testing.assert_allclose(added[2:], 0.5 * rollout.records["episodic"][2:], atol=1e-6)
    assert not added[:2].any()
    np.testing.assert_array_equal(rollout.reward, stored)


@pytest.mark.parametrize("make_agent", [builders.make_acer, builders.make_sac, builders.make_a2c])
@pytest.mark.parametrize("changes", [{}, {"memory": "embeddings", "features": "agent"}])
def test_without_a_module_and_strength_nothing_changes(make_agent, changes):
    learner, without = make_learner(agent=make_agent(), strength=0.0, **changes), None
    without = Learner(make_agent(), builders.make_role(), {}, None)
    for seed in range(3):
        rollout = make_collected(seed=seed)
        builders.update(learner, learner.record(rollout))
        builders.update(without, rollout)
    assert learner.parameters.vector.equal(without.parameters.vector)
    assert learner.auxiliaries.modules == {} == learner.auxiliaries.groups


def test_the_inverse_model_trains_the_embedding_and_not_the_agent():
    role = builders.make_role()
    learner = make_learner(role, memory="embeddings", learning_rate=0.01, strength=0.0)
    without = Learner(builders.make_acer(role), role, {}, None)
    group = learner.parameters.group_slices["auxiliary/episodic"]
    before = learner.parameters.vector[group].clone()
    losses = []
    for _ in range(40):
        rollout = learner.record(make_collected(seed=0))
        losses.append(float(builders.update(learner, rollout).compute_metrics()["train/episodic_inverse_error"]))
        builders.update(without, rollout)
    assert losses[-1] < losses[0] - 0.1
    assert (learner.parameters.vector[group] != before).float().mean() > 0.5
    agent = learner.parameters.group_slices["acer"]
    torch.testing.assert_close(learner.parameters.vector[agent], without.parameters.vector)


@pytest.mark.parametrize("features", ["own", "agent"])
def test_embeddings_of_a_revisited_state_have_a_smaller_bonus(features):
    learner = make_learner(memory="embeddings", features=features)
    states, first, _ = make_lane([(state, "running") for state in [0, 1, 2, 3, 4, 2, 9]])
    bonus = record(learner, cut_lane(states, first, 0, 0, 6, False))[:, 0]
    assert bonus.dtype == np.float32
    assert bonus[4] < 0.1 * min(bonus[3], bonus[5])
    first[4] = True  # the later rows are another episode, which has not visited the state
    bonus = record(learner, cut_lane(states, first, 0, 0, 6, False))[:, 0]
    assert bonus[3] == 0 and bonus[4] > 0.5 * bonus[5]


def load(**values) -> None:
    layers = [("test", {"auxiliaries": {"episodic": values}})]
    check_effects(resolve(layers), layers)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strength": -0.1}, "auxiliaries.episodic.strength is -0.1.*at least 0"),
        ({"cell_size": 0}, "cell_size is 0.*above 0"),
        ({"gamma": 1.1}, "gamma is 1.1.*from 0 to 1"),
        ({"bonus": "none"}, "bonus is 'none'"),
        ({"neighbors": 5}, "neighbors is for memory embeddings, not for counts, and so has no effect"),
        ({"update_every": 2}, "update_every is for memory embeddings, not for counts, and so has no effect"),
        ({"memory": "embeddings", "bonus": "first_visit"}, "bonus is for memory counts"),
        ({"memory": "embeddings", "features": "agent", "units": 8}, "units is for features own"),
        ({"neighbours": 5}, "unknown setting auxiliaries.episodic.neighbours; did you mean .*neighbors"),
    ],
)
def test_bad_settings_are_errors_of_one_line(values, message):
    with pytest.raises(UserError, match=message) as error:
        load(**values)
    assert "\n" not in str(error.value)


def test_settings_with_an_effect_are_accepted():
    load(memory="embeddings", neighbors=5, units=8, capacity=100)
    load(observations="image", cell_size=None, bonus="first_visit")


def test_a_pattern_that_matches_no_observation_is_an_error_of_one_line():
    with pytest.raises(UserError) as error:
        make_learner(observations="image")
    assert str(error.value) == "auxiliaries.episodic: observations 'image' is the name of no observation; they are obs"
