"""Agents that are added during training: what is logged, recorded, saved and rejected; and several roles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts import memory_budget as memory
from algorithm.parts.components_builder import ComponentsBuilder, get_agent_settings
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.build import train
from tests.builders import make_role, random_rollout
from tests.checkpointing.test_resume import new_run, train_run
from tests.fakes import MORE

pytestmark = pytest.mark.usefixtures("registered_fakes")
ADDED = "agents that are added"


def growing(tmp_path, **base) -> RunFolder:
    return new_run(tmp_path, "a", ADDED, **base)


def test_added_agents_are_logged_and_saved(tmp_path):
    folder, logged = growing(tmp_path), []
    train(folder.load_settings(), folder, logged.append)
    # One agent is added before anything is stored: all four share 150 rows, in multiples of 8. Each later one gets 32.
    lines = [line.split(" bytes")[0].rsplit(" of ", 1)[0] for line in logged if "replay: " in line]
    assert lines == [
        "replay: 144 rows",
        "agents: 3 -> 4; replay: 128 rows",
        "agents: 4 -> 5; replay: 160 rows",
        "agents: 5 -> 7; replay: 224 rows",
    ]
    checkpoint = folder.find_latest()
    assert checkpoint.lanes("agent") == (7, 4)
    assert folder.read_roles()["agent"].lanes == 7
    assert json.loads((folder.path / "roles.json").read_text())["agent"]["lanes"] == 7


def test_a_resumed_run_starts_with_the_added_agents(tmp_path):
    folder, logged = growing(tmp_path), []
    train_run(folder)
    train(folder.load_settings(("test", {"base_config": {"max_step": 300}})), folder, logged.append)
    assert [line for line in logged if "replay: " in line][0].startswith("replay: 224 rows")
    assert not any("agents: " in line for line in logged)
    assert folder.find_latest().lanes("agent") == (7, 4)


def test_a_replay_that_outgrows_the_memory_ends_the_run_after_a_checkpoint(tmp_path, monkeypatch):
    folder = growing(tmp_path)
    monkeypatch.setattr(memory, "measure_free_memory", lambda: 10_000)
    with pytest.raises(UserError, match=r"^agents: 4 -> 5; replay_config.capacity: 160 rows .* at most \d+ rows fit"):
        train_run(folder)
    assert folder.find_latest().lanes("agent") == (4, 4)
    assert 3 * 3 < folder.find_latest().counters.env_steps < 4 * max(MORE)


def test_too_many_agents_for_the_capacity_are_an_error(tmp_path):
    folder = growing(tmp_path, n_envs=1)
    tree = folder.load_settings().tree
    folder.record_settings(
        {**tree, "replay_config": {"capacity": 30}, "acer_config": {**tree["acer_config"], "learning_starts": 8}}, 0
    )
    with pytest.raises(UserError, match="replay_config.capacity: 30 rows over 2 lanes hold no sequence of 12 rows"):
        train_run(folder)


def test_added_agents_count_in_iterations(tmp_path):
    folder = growing(tmp_path, max_iter=6)
    counters = train_run(folder).counters
    # Each agent's episodes take six ticks: one of each agent ends within any six ticks.
    assert counters.iterations == 6
    assert counters.env_steps < 230


@pytest.mark.parametrize("kind", ["a2c", "agents that are added, ppo"])
def test_agents_without_a_replay_log_and_save_none(kind, tmp_path):
    folder, logged = new_run(tmp_path, "a", kind), []
    train(folder.load_settings(), folder, logged.append)
    assert not any("replay" in line for line in logged)
    checkpoint = folder.find_latest().folder
    assert (checkpoint / "agent" / "learner.pt").is_file()
    assert not list(checkpoint.rglob("replay.npz"))


def test_more_minibatches_than_sequences_are_an_error(tmp_path):
    folder = new_run(tmp_path, "a", "ppo, recurrent and skipping", n_envs=1)
    with pytest.raises(
        UserError, match=r"ppo_config.minibatches is 2, but a rollout has 1 sequences \(one for each ag"
    ):
        train_run(folder)


def test_schedules_of_each_role_follow_the_steps_of_all_roles(tmp_path):
    folder = new_run(tmp_path, "a", "a2c", max_step=200)
    builder = ComponentsBuilder(folder.load_settings(), folder, None, lambda line: None)
    runner, walker = (builder(name, make_role()) for name in ("runner", "walker"))
    rollouts = [random_rollout(np.random.default_rng(seed)) for seed in range(3)]
    for components, rollout in zip((runner, walker, runner), rollouts, strict=True):
        components.learner.observe(rollout)
    rows = sum(rollout.valid.sum() for rollout in rollouts)
    late = builder("late", make_role())
    assert {each.learner.rows_seen for each in (runner, walker, late)} == {rows}
    assert {each.learner._compute_progress() for each in (runner, walker, late)} == {rows / 200}


def test_a_role_has_its_own_settings_and_others_have_the_settings_of_the_run():
    tree = {"replay_config": {"capacity": 500}, "ma_config": {"wolf": {"replay_config": {"capacity": 700}}}}
    cluster = {"base_config": {"runtime": "CLUSTER"}, "cluster_config": {"actors": 2, "learners": 2}}
    for layers, capacities in (([("test", tree)], (700, 500)), ([("test", tree), ("cluster", cluster)], (350, 250))):
        settings = resolve(layers)
        by_role = [get_agent_settings(settings, name) for name in ("wolf", "sheep")]
        assert tuple(each.replay.capacity for each in by_role) == capacities
        assert all(each.base.device == ("cpu" if len(layers) > 1 else "auto") for each in by_role)
