"""Agents that are added during training, several roles, and the memory that replays and batches need."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts import components_builder as memory
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import PROCESS, TRAINING, RunSeeds
from algorithm.replay import Replay, ReplaySize
from algorithm.runs.build import train
from tests.builders import make_acer, make_reactor, make_role, make_sac, random_rollout
from tests.checkpointing.test_resume import new_run, train_run
from tests.doubles import EncodedLanes
from tests.fakes import MORE

pytestmark = pytest.mark.usefixtures("registered_fakes")
ADDED = "agents that are added"


def growing(tmp_path, **base) -> RunFolder:
    return new_run(tmp_path, "a", ADDED, **base)


def test_added_agents_are_logged_saved_and_there_from_the_start_of_a_resumed_run(tmp_path):
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
    logged.clear()
    train(folder.load_settings(("test", {"base_config": {"max_step": 300}})), folder, logged.append)
    assert [line for line in logged if "replay: " in line][0].startswith("replay: 224 rows")
    assert not any("agents: " in line for line in logged)
    assert folder.find_latest().lanes("agent") == (7, 4)


def test_a_replay_that_outgrows_the_memory_ends_the_run_after_a_checkpoint(tmp_path, set_free):
    folder = growing(tmp_path)
    set_free(10_000)
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


@pytest.mark.parametrize("kind", ["a2c, hybrid and recurrent", "agents that are added, ppo"])
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
    folder = new_run(tmp_path, "a", "a2c, hybrid and recurrent", max_step=200)
    builder = memory.ComponentsBuilder(folder.load_settings(), folder, None, lambda line: None)
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
        by_role = [memory.get_agent_settings(settings, name) for name in ("wolf", "sheep")]
        assert tuple(each.replay.capacity for each in by_role) == capacities
        assert all(each.base.device == ("cpu" if len(layers) > 1 else "auto") for each in by_role)


def test_free_memory_is_what_linux_reports_as_available_or_unknown(tmp_path, monkeypatch):
    free = memory.measure_free_memory()
    assert free is None or 10**7 < free < 10**15
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 5 kB\nMemAvailable:   400 kB\n")
    assert memory.measure_free_memory() == 400 * 1024


@pytest.fixture
def set_free(monkeypatch):
    """Return a function that sets the number of free bytes."""
    return lambda free: monkeypatch.setattr(memory, "measure_free_memory", lambda: free)


def test_sizes_are_logged_and_summed_over_roles_and_workers(set_free):
    logged = []
    set_free(10_000_000)
    budget = memory.MemoryBudget(logged.append)
    budget.reserve("agent", ReplaySize(10_000, 600_000))
    assert logged == ["replay: 10,000 rows of 60 bytes are 0.6 MB"]
    with pytest.raises(UserError, match=r"capacity: 100,000 rows.*9\.5 MB.*but 9\.4 MB.*at most 98,947 rows fit"):
        budget.reserve("other", ReplaySize(100_000, 9_500_000))
    assert logged[1].startswith("replay of other:")
    set_free(2_500_000)
    memory.MemoryBudget(logged.append, workers=2).reserve("agent", ReplaySize(1000, 1_000_000))
    assert logged[2] == "replay: 1,000 rows of 1,000 bytes are 1.0 MB for each of 2 workers"
    with pytest.raises(
        UserError, match=r"1\.0 MB for each of 3 w.*, but 0\.8 MB of memory are free for each; at most 833"
    ):
        memory.MemoryBudget(logged.append, workers=3).reserve("agent", ReplaySize(1000, 1_000_000))
    set_free(None)
    memory.MemoryBudget(logged.append).reserve("agent", ReplaySize(10**12, 10**15))


def test_a_replay_that_grows_needs_memory_for_the_rows_that_are_copied(set_free):
    set_free(1_000_000)
    budget = memory.MemoryBudget(lambda line: None)
    budget.reserve("agent", ReplaySize(100, 400_000))
    budget.reserve("agent", ReplaySize(150, 600_000), copied_rows=100)
    with pytest.raises(UserError, match=r"2: replay_config.capacity: 200 rows .*, but 0\.6 MB of memory are free"):
        budget.reserve("agent", ReplaySize(200, 800_000), copied_rows=100, prefix="2: ")
    assert budget.reserved_bytes == 800_000


def test_a_batch_that_does_not_fit_is_rejected(set_free):
    set_free(1_000_000)
    schedule = make_acer(sequence_length=10, batch_size=100).schedule
    memory.check_batch(schedule, ReplaySize(1000, 1_000_000))
    with pytest.raises(UserError, match=r"batch_size: 101 sequences of 10 rows are 1\.0 MB, but 1\.0 MB of memory are"):
        memory.check_batch(replace(schedule, batch_size=101), ReplaySize(1000, 1_000_000))
    memory.check_batch(replace(schedule, batch_size=101, replay_ratio=0), ReplaySize(1000, 1_000_000))


MAKERS = {"ACER": make_acer, "SAC": make_sac, "REACTOR": make_reactor}


def refusal(algorithm, lanes, max_step=None, capacity=50_000, **changes):
    """Return the error for these settings, or None if they are accepted."""
    base = {"algorithm": algorithm, "max_step": max_step}
    settings = resolve([("test", {"base_config": base, "replay_config": {"capacity": capacity}})])
    role = make_role(lanes)
    try:
        memory.check_learning_starts(settings, MAKERS[algorithm](role, **changes), lanes, lanes)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("algorithm", MAKERS)
@pytest.mark.parametrize(
    ("lanes", "chunk", "start"),
    [(1, 1, 1000), (1, 1, 1), (3, 5, 57), (3, 5, 58), (4, 20, 156), (4, 20, 157), (7, 3, 100)],
)
def test_the_capacity_in_the_error_is_the_least_that_holds_learning_starts(algorithm, lanes, chunk, start):
    changes = {"rollout_length": chunk, "learning_starts": start}
    line = refusal(algorithm, lanes, capacity=lanes * chunk, **changes)
    most, needed = (int(number) for number in re.findall(r"at most (\d+) rows .* at least (\d+),", line)[0])
    assert line.endswith(f"or learning_starts to at most {most}")
    assert "rows" in refusal(algorithm, lanes, capacity=needed - 1, **changes)
    assert refusal(algorithm, lanes, capacity=needed, **changes) is None

    replay, written = (
        Replay(capacity=needed, lanes=lanes, chunk=chunk, length=1, rng=np.random.default_rng(0)),
        EncodedLanes(lanes, chunk),
    )
    for _ in range(needed // lanes // chunk + 1):
        replay.add(written.rollout(*range(lanes)))
    assert start <= replay.rows
    changes["learning_starts"] = replay.rows
    assert refusal(algorithm, lanes, capacity=needed, **changes) is None
    changes["learning_starts"] += 1
    assert f"at most {replay.rows} rows" in refusal(algorithm, lanes, capacity=needed, **changes)


def test_a_run_that_ends_before_its_first_update_is_rejected_if_it_has_updates():
    assert "base_config.max_step 999 ends the run" in refusal("SAC", 1, max_step=999)
    assert "base_config.max_step 999 ends the run" in refusal("ACER", 1, max_step=999, on_policy_updates=False)
    assert "base_config.max_step 999 ends the run" in refusal("REACTOR", 1, max_step=999)
    assert refusal("SAC", 1, max_step=1000) is refusal("SAC", 1) is None
    assert refusal("ACER", 1, max_step=10) is None  # learns on-policy
    assert refusal("ACER", 1, capacity=100, replay_ratio=0.0) is None
    assert "acer_config.learning_starts" in refusal("ACER", 1, capacity=100)


def list_seeds(seeds: RunSeeds) -> list[int]:
    components = [int(child.generate_state(1)[0]) for child in seeds.make_component_seeds("agent").spawn(4)]
    return [seeds.get_seed(PROCESS), seeds.get_seed(TRAINING, 0), seeds.get_seed(TRAINING, 1000), *components]


def test_the_first_worker_has_the_seeds_of_a_run_without_workers_and_others_have_different_ones():
    assert list_seeds(RunSeeds(5, (0, 0))) == list_seeds(RunSeeds(5))
    seeds = [seed for worker in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)] for seed in list_seeds(RunSeeds(5, worker))]
    assert len(set(seeds)) == len(seeds)
