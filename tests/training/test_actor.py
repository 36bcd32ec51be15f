from __future__ import annotations

import numpy as np
import pytest

from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents
from algorithm.training.invalid_values import Episode
from tests import builders
from tests.builders import make_acer, make_role, make_sac
from tests.doubles import (
    ParityAgent,
    Row,
    ScriptedAdapter,
    UpdateCounter,
    collect_ticks,
    join_lanes,
    make_components,
    make_step,
)

# Lane 0 has a row in every tick, lane 1 in every other one. Lane 0 is truncated after 12 (final observation: 13), then
# it terminates; lane 1 terminates. Every reward is different.
SCRIPT = [
    {"agent": make_step(Row(0, 10, first=True), Row(1, 50, first=True))},
    {"agent": make_step(Row(0, 11, 1))},
    {"agent": make_step(Row(0, 12, 2), Row(1, 51, 5))},
    {"agent": make_step(Row(0, 13, 3, is_bootstrap_row=True))},
    {"agent": make_step(Row(0, 20, first=True), Row(1, 52, 6))},
    {"agent": make_step(Row(0, 21, 4))},
    {"agent": make_step(Row(0, 30, 7, alive=False, first=True), Row(1, 60, 8, alive=False, first=True))},
    {"agent": make_step(Row(0, 31, 9))},
    {"agent": make_step(Row(0, 32, 1), Row(1, 61, 2))},
]


def make_actor(script=SCRIPT, learner=None, rows=2, **lanes):
    """Return an actor of agents with rollouts of some rows; the last tick of the script is not decided."""
    adapter = ScriptedAdapter([*script, {}], **(lanes or {"agent": 2}))
    return Actor(make_components(adapter, ParityAgent(rollout_length=rows), learner), seed=0)


@pytest.fixture
def actor():
    return make_actor()


def collect(actor: Actor, ticks: int) -> list:
    return [rollout for _, rollout in collect_ticks(actor, ticks)]


def test_a_rollout_has_the_oldest_full_slots_of_any_lanes(actor):
    assert [rollout.lane.tolist() for rollout in collect(actor, 9)] == [[0, 0], [1, 0], [0, 1]]


def test_the_stored_rows_equal_the_script(actor):
    two_of_lane_0, second, third = collect(actor, 9)
    assert two_of_lane_0.obs["obs"][..., 0].tolist() == [[10, 12], [11, 13], [12, 20]]
    assert two_of_lane_0.first.tolist() == [[True, False], [False, False], [False, True]]
    assert two_of_lane_0.raw_action[..., 0].tolist() == [[0, 0], [1, 1]]
    assert two_of_lane_0.reward.tolist() == [[1, 3], [2, 0]]
    assert two_of_lane_0.alive.tolist() == [[True, True], [True, True]]
    assert two_of_lane_0.valid.tolist() == [[True, True], [True, False]]

    assert second.obs["obs"][..., 0].tolist() == [[50, 20], [51, 21], [52, 30]]
    assert second.first.tolist() == [[True, True], [False, False], [False, True]]
    assert second.reward.tolist() == [[5, 4], [6, 7]]
    assert second.alive.tolist() == [[True, True], [True, False]]
    assert second.valid.all()

    assert third.obs["obs"][..., 0].tolist() == [[30, 52], [31, 60], [32, 61]]
    assert third.first.tolist() == [[True, False], [False, True], [False, False]]
    assert third.reward.tolist() == [[9, 8], [1, 2]]
    assert third.alive.tolist() == [[True, False], [True, True]]
    assert third.valid.all()


def test_memory_is_zero_at_the_start_of_an_episode_and_kept_in_ticks_without_a_row(actor):
    lanes = join_lanes(collect(actor, 9))
    assert lanes[0].behavior[:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert lanes[1].behavior[:, 0, 1].tolist() == [0, 1, 2, 0]


def test_a_rollout_has_the_memory_before_its_first_row(actor):
    rollouts = collect(actor, 9)
    continued = [(rollout.memory[b, 0], rollout.behavior[0, b, 1]) for rollout in rollouts for b in (0, 1)]
    assert [kept for kept, seen in continued if seen] == [2, 2]
    assert all(kept == seen for kept, seen in continued if seen)


def test_behavior_belongs_to_the_decision_in_the_same_row(actor):
    for rollout in collect(actor, 9):
        np.testing.assert_array_equal(rollout.behavior[..., 0], rollout.obs["obs"][:-1, :, 0])
        np.testing.assert_array_equal(rollout.raw_action[..., 0], rollout.behavior[..., 0] % 2)
        assert rollout.index.tolist() == [-1, -1] and rollout.weight.tolist() == [1, 1] and rollout.burn_in == 0


def test_only_executed_decisions_count_as_env_steps(actor):
    counts = []
    for _ in range(9):
        collect(actor, 1)
        counts.append(actor.env_steps)
    assert counts == [2, 3, 5, 5, 7, 8, 10, 11, 13]


def test_episodes_have_their_raw_returns_and_executed_lengths(actor):
    collect(actor, 9)
    assert list(actor.episodes) == [
        Episode(role="agent", lane=0, episode_return=6, length=3),
        Episode(role="agent", lane=0, episode_return=11, length=2),
        Episode(role="agent", lane=1, episode_return=19, length=3),
    ]


def test_the_environment_receives_the_actions_of_the_lanes_with_rows(actor):
    collect(actor, 9)
    actions = [each["agent"].ravel().tolist() for each in actor.training.adapter.actions[:4]]
    assert actions == [[0, 0], [1], [0, 1], [1]]


def test_a_returned_rollout_is_not_changed_later(actor):
    rollouts = collect(actor, 5)
    arrays = rollouts[0].obs["obs"], rollouts[0].reward, rollouts[0].behavior
    before = [array.copy() for array in arrays]
    collect(actor, 4)
    for then, now in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(then, now)


NEXT = Row(0, 20, 0, first=True)


@pytest.mark.parametrize(
    "ending",
    [
        [Row(0, 12, 3, is_bootstrap_row=True), NEXT],
        [Row(0, 12, 3, alive=False, is_bootstrap_row=True), NEXT],
        [Row(0, 20, 3, alive=False, first=True)],
        [Row(0, 20, 3, first=True)],
    ],
    ids=["truncation", "observed termination", "termination", "lost"],
)
def test_every_kind_of_end_is_one_episode(ending):
    rows = [Row(0, 10, first=True), Row(0, 11, 1), *ending, Row(0, 21, 9)]
    actor = make_actor([{"agent": make_step(row)} for row in rows], agent=1)
    collect(actor, len(rows))
    assert list(actor.episodes) == [Episode(role="agent", lane=0, episode_return=4, length=2)]
    assert actor.env_steps == 4


def test_roles_are_collected_separately_and_may_appear_later():
    script = [{"early": make_step(Row(0, 10, first=True))}]
    script += [
        {"early": make_step(Row(0, 10 + t, t)), "late": make_step(Row(0, 50 + t, -t, first=t == 1))}
        for t in range(1, 5)
    ]
    actor = make_actor(script, early=1, late=1)
    rollouts = collect_ticks(actor, 5)
    assert [role for role, _ in rollouts] == ["early", "late", "early"]
    assert rollouts[1][1].obs["obs"].ravel().tolist() == [51, 52, 53]
    assert rollouts[1][1].reward.ravel().tolist() == [-2, -3]
    assert rollouts[2][1].obs["obs"].ravel().tolist() == [12, 13, 14]
    assert set(actor.training.by_role) == {"early", "late"}


@pytest.mark.parametrize("asked", [(1, 1, 1), (1, 0.5, 0.2), (1, 0.01, 0.01), (1, 0, 0)], ids=str)
@pytest.mark.parametrize("added", [(0, 0, 0), (0, 1, 70), (0, 40, 40)], ids=str)
def test_lanes_with_rows_in_any_ticks_are_stored_completely_and_in_order(asked, added):
    rng = np.random.default_rng(0)
    lanes = len(asked)
    shown = [[lane * 1000.0] for lane in range(lanes)]
    script = []
    for tick in range(301):
        rows = [Row(lane, lane * 1000, first=True) for lane in range(lanes) if added[lane] == tick]
        for lane in np.flatnonzero((rng.random(lanes) < asked) & (np.array(added) < tick)).tolist():
            shown[lane].append(shown[lane][-1] + 1)
            rows.append(Row(lane, shown[lane][-1], reward=shown[lane][-1]))
        script.append({"agent": make_step(*sorted(rows, key=lambda row: row.lane))})
    actor = make_actor(script, rows=3, agent=added.count(0))
    rollouts, buffer = collect(actor, len(script)), actor._buffers["agent"]
    assert len(rollouts) > 10
    assert sorted([*buffer.free_slots, *buffer.full_slots, *buffer.slot]) == list(range(3 * lanes))
    assert {rollout.reward.shape for rollout in rollouts} >= {(3, lanes)}
    assert {rollout.reward.shape for rollout in rollouts} <= {(3, added.count(0)), (3, added.count(0) + 1), (3, lanes)}
    for lane, record in join_lanes(rollouts).items():
        rows = len(record)
        assert record.obs["obs"].ravel().tolist() == shown[lane][: rows + 1]
        assert record.reward.ravel().tolist() == shown[lane][1 : rows + 1]
        assert record.behavior[:, 0, 1].tolist() == list(range(rows))
    full, handed_over = sum((len(rows) - 1) // 3 for rows in shown), sum(len(rollout.lane) for rollout in rollouts)
    assert full - lanes < handed_over <= full


def test_active_lanes_are_recorded_until_they_are_cleared():
    actor = make_actor(agent=3)
    collect(actor, 1)
    assert actor.active_lanes["agent"].tolist() == [True, True, False]
    actor.active_lanes["agent"][:] = False
    collect(actor, 1)
    assert actor.active_lanes["agent"].tolist() == [True, False, False]


def test_a_tick_completes_rollouts_before_it_decides():
    """One is complete when as many slots are full as there are lanes, with the steps that `receive` returned.

    The version of a column is the number of updates before its first row. Lane 0 of the third rollout starts in the
    tick that completed the second one, and counts its updates.
    """
    learner = UpdateCounter()
    actor, versions, decided = make_actor(learner=learner), {}, []
    for tick in range(9):
        decided.append(len(actor.training.adapter.actions))
        for _, rollout in actor.complete_rollouts():
            versions[tick] = rollout.version.tolist()
            learner.updates += 100
        actor.act()
        actor.receive()
        learner.updates += 1
    assert decided == list(range(9))
    assert versions == {4: [0, 2], 6: [0, 104], 8: [206, 104]}


def test_the_first_rows_have_uniformly_random_actions():
    role = Role(500, {"obs": ObsSpec((3,))}, ActionSpec(2))
    agent, learner = make_sac(role, random_steps=700, std_init=0.02), UpdateCounter()
    parts = AgentComponents(role=role, agent=agent, scheduler=None, learner=learner)
    step = builders.make_step({"obs": np.zeros((500, 3), np.float32)})
    for learner.rows_seen, spread in [(0, 1.0), (699, 1.0), (700, 0.1)]:
        decision = parts.act(step, np.zeros((500, 0), np.float32))
        assert 0.5 * spread < np.abs(decision.action).max() <= spread
        np.testing.assert_allclose(np.tanh(decision.raw_action), decision.action, atol=1e-6)
        assert decision.behavior.shape == (500, 4)
    with pytest.raises(NotImplementedError, match="Acer sets random_steps, but has no `act_uniformly`"):
        make_acer(make_role()).act_uniformly(step, np.zeros((500, 0), np.float32))


def test_the_probability_of_random_actions_falls_to_that_of_the_policy():
    role = Role(4000, {"obs": ObsSpec((3,))}, ActionSpec(branches=(4,)))
    changes = {"random_steps": 500, "discrete_dqn_epsilon": 0.2, "discrete_dqn_epsilon_steps": 1000}
    agent, learner = make_sac(role, discrete_dqn_like=True, **changes), UpdateCounter()
    parts = AgentComponents(role=role, agent=agent, scheduler=None, learner=learner)
    step, memory = builders.make_step({"obs": np.ones((4000, 3), np.float32)}), np.zeros((4000, 0), np.float32)
    best = agent.greedy(step, memory).action
    for learner.rows_seen, epsilon in [(499, 1.0), (500, 1.0), (750, 0.8), (1250, 0.4), (1500, 0.2), (9999, 0.2)]:
        decision = parts.act(step, memory)
        assert abs((decision.action != best).mean() - 0.75 * epsilon) < 0.04  # 5 standard errors at most
        if learner.rows_seen >= 500:  # the stored statistics are those of the drawn actions
            assert sorted(np.exp(decision.behavior[0])) == pytest.approx([epsilon / 4] * 3 + [1 - 0.75 * epsilon], 1e-4)
