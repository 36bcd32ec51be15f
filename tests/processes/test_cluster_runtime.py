"""Runs on a cluster, with actors in this process: what is learned, lag, dropped rollouts, replaced actors."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.parts.run_folder import RunFolder
from algorithm.processes import cluster
from algorithm.processes.cluster import check_actors_on_resume
from algorithm.processes.host import ServiceSpec
from algorithm.processes.services import WeightReceiver, pack_weights
from algorithm.processes.supervisor import Supervisor
from algorithm.rollout import TD_ERROR, Rollout
from algorithm.runs import build
from algorithm.runs.run_requests import RunRequest, resume_run
from algorithm.tools.reports.report_files import make_report
from algorithm.tools.reports.run_data import read_run
from algorithm.training.learner import Learner
from algorithm.training.metrics import read_table
from tests.builders import make_acer, make_role, random_rollout, update
from tests.checkpointing.test_resume import SETTINGS, new_run, train_run
from tests.processes.inline_host import InlineHost
from tests.test_learning import CONVERGING, PROBE, SECTIONS, read_values, restore
from tests.unity_player.launcher import make_player

LEARNERS = Learner, WeightReceiver
CHAIN = {"base_config": {"env_type": "PROBE", "env_name": "chain"}}


def train(name, *layers):
    """Train a new run. Return its settings, folder, result, rows of metrics and logged lines."""
    settings, lines, source = resolve([("test", layer) for layer in layers]), [], Path("source")
    source.mkdir(exist_ok=True)
    folder = RunFolder.create("test", source, name, settings.tree)
    result = build.train(settings, folder, lines.append)
    rows = read_table(folder.path / "metrics.csv").rows
    return SimpleNamespace(settings=settings, folder=folder, result=result, rows=rows, lines=lines)


def on_ray(**cluster):
    return {"base_config": {"runtime": "RAY"}, "cluster_config": cluster}


@pytest.fixture
def run_cluster(hosts, monkeypatch):
    """Return a function that trains a run of the chain on a cluster, given settings of base_config and of the cluster.

    It returns what `train` returns, with the host, and the rollouts that were learned from.
    """
    rollouts, run_updates = [], cluster.run_updates

    def record(components, rollout, record_update):
        rollouts.append(rollout)
        run_updates(components, rollout, record_update)

    def run(*layers, base=MappingProxyType({}), **cluster_settings):
        layers = SETTINGS, CHAIN, *layers, {"base_config": {**base}}, on_ray(**{"actors": 2, **cluster_settings})
        return SimpleNamespace(**vars(train("run", *layers)), host=hosts[0], rollouts=rollouts)

    monkeypatch.setattr(cluster, "run_updates", record)
    run.rollouts = rollouts
    return run


def read_weights(folder):
    return folder.find_latest().weights("agent")["parameters"]


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_one_actor_without_lag_equals_the_local_runtime(algorithm, hosts):
    base = {"base_config": {"algorithm": algorithm, "max_step": 150, "save_every": None}}
    run = train("cluster", SETTINGS, CHAIN, base, on_ray(actors=1, max_lag=0))
    same_end = {"base_config": {"max_step": run.result.counters.env_steps}}  # after a complete rollout
    local = train("local", SETTINGS, CHAIN, base, same_end)
    expected = read_weights(local.folder)
    for group, values in read_weights(run.folder).items():
        assert torch.equal(values, expected[group])
    assert run.result.counters.updates == local.result.counters.updates > 5


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_values_are_learned_through_lag(lag, hosts):
    section = {"gamma": 0.9, **SECTIONS["ACER"], **CONVERGING}
    layer = {"base_config": {**PROBE, "env_name": "leak", "max_step": 6_000}, "acer_config": section}
    run = train("run", layer, on_ray(actors=1, rollouts_in_flight=lag + 1, max_lag=lag))
    assert {float(row["cluster/lag"]) for row in run.rows[1:] if row["cluster/lag"]} == {lag}
    player, states = restore(run.folder)
    q = read_values("ACER", player.agent, states, section).numpy()
    np.testing.assert_allclose(q[0], -41, atol=2)
    np.testing.assert_allclose(q[1], 10, atol=1)


KINDS = [
    "gru, last action and episodic bonus",
    "prioritized, with repeated actions",
    "continuous, noisy and normalised",
    "noisy layers",
    "sac, hybrid and recurrent",
    "reactor, lazy, memories of policy and critic, skipping",
    "rnd of actions, novel actions, sac",
    "a2c, hybrid and recurrent",
    "ppo, recurrent and skipping",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_agent_trains_and_resumes_with_more_actors(kind, hosts, tmp_path):
    folder = new_run(tmp_path, "run", kind, runtime="RAY", max_step=150, max_iter=None)
    train_run(folder)
    first = folder.find_latest()
    assert first.counters.updates > 3
    assert first.lanes("agent") == (6, 6)

    settings = folder.load_settings(("test", {"base_config": {"max_step": 300}, "cluster_config": {"actors": 3}}))
    build.train(settings, folder, lambda line: None)
    assert folder.find_latest().counters.env_steps >= 300
    assert folder.find_latest().lanes("agent")[0] == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_config": {"runtime": "LOCAL"}}, r"base_config.runtime: CLUSTER -> LOCAL is not possible with --resume"),
        ({"cluster_config": {"actors": 1}}, r"cluster_config.actors: 2 -> 1 is not possible with --resume"),
        ({"cluster_config": {"actors": 3}}, None),
    ],
)
def test_a_run_on_a_cluster_keeps_its_environments(changes, message):
    last = resolve([("test", on_ray(actors=2))]).tree
    settings = resolve([("test", on_ray(actors=2)), ("test", changes)])
    error = pytest.raises(UserError, match=f"{message}: the saved run has .* cluster_config.actors=2")
    with error if message else nullcontext():
        check_actors_on_resume(last, settings)


def test_a_run_continues_in_one_process_and_on_the_cluster_again(hosts, monkeypatch):
    folder = train("run", SETTINGS, CHAIN, on_ray(actors=1)).folder
    monkeypatch.setattr(RunFolder, "find", lambda env, name: RunFolder(folder.path))
    on_two = {"cluster_config": {"actors": 2}}
    for runtime, cluster_layer, env_steps, lanes in (("LOCAL", {}, 300, 3), ("RAY", on_two, 450, 6)):
        layer = {"base_config": {"runtime": runtime, "max_step": env_steps}, **cluster_layer}
        before = folder.find_latest().counters
        with resume_run(RunRequest(env="test", layers=[("test", layer)]), print) as (resumed, settings):
            counters = build.train(settings, resumed, print).counters
        assert counters.env_steps >= env_steps and counters.updates > before.updates
        assert folder.find_latest().lanes("agent")[0] == lanes
    assert len(hosts) == 2  # no actors while the runtime is LOCAL


def test_actors_receive_the_number_of_rows_of_all_roles(hosts):
    pytest.importorskip("pettingzoo")
    race = {"env_type": "PETTINGZOO", "env_name": "tests.adapters.parallel:Race", "algorithm": "A2C", "max_step": 400}
    run = train("run", {"base_config": race, "a2c_config": {"rollout_length": 4}}, on_ray(actors=1))
    (handle,) = hosts[0].handles
    checkpoint, by_role = run.folder.find_latest(), handle.service.training.by_role
    rows = sum(int(checkpoint.learner_state(role)["seen"]) for role in by_role)
    assert len(by_role) == 2 and rows > 300
    for components in by_role.values():
        assert rows - 40 < components.learner.rows_seen <= rows  # that of the last request


@pytest.mark.usefixtures("prepared_scenes")
def test_roles_that_are_known_after_the_first_reset_are_those_of_the_actors(hosts, tmp_path):
    """The behaviors of a Unity scene are known only then."""
    player = {"build_path": str(make_player(tmp_path, "balance_ball")), "timeout_wait": 20}
    base = {"env_type": "UNITY", "env_name": "3DBall", "n_envs": 1, "max_step": 1200, "unity_args": player}
    agent = {"acer_config": {"std": "fixed", "rollout_length": 10}}
    run = train("run", on_ray(actors=2), {"base_config": base}, agent)
    assert run.result.counters.env_steps >= 1200
    assert run.folder.find_latest().lanes("3DBall") == (24, 24)


def test_rollouts_of_one_version_are_joined_without_a_replay(run_cluster):
    run = run_cluster(base={"algorithm": "A2C"}, actors=3, max_lag=0)
    for number, rollout in enumerate(run.rollouts):
        assert sorted(rollout.lane) == list(range(9))
        assert set(rollout.version) == {number}
    assert run.host.n_put == len(run.rollouts)


@pytest.mark.parametrize("algorithm", ["ACER", "SAC"])
def test_a_rollout_is_first_copied_into_the_replay(algorithm, run_cluster, monkeypatch):
    """The arrays of a rollout are views of shared memory, and those that arrive are those that are added."""
    delivered, fetch = [], InlineHost.fetch

    def record(self, ticket):
        reply = fetch(self, ticket)
        delivered.extend(rollout for _, rollout in getattr(reply.result, "rollouts", ()))
        return reply

    monkeypatch.setattr(InlineHost, "fetch", record)
    rollouts = run_cluster(base={"algorithm": algorithm}).rollouts
    assert len(rollouts) > 5
    addresses = {rollout.obs["obs"].ctypes.data for rollout in delivered}
    assert all(rollout.obs["obs"].ctypes.data in addresses for rollout in rollouts)


@pytest.mark.parametrize(("actors", "lost"), [(2, [1]), (4, [1, 3])], ids=["one of two", "two of four"])
def test_lost_actors_are_replaced_and_no_rollout_is_learned_from_twice(actors, lost, run_cluster, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {(index, 0, 3) for index in lost})  # their third requests
    run = run_cluster({"replay_config": {"capacity": 400}}, base={"max_step": 400}, actors=actors)
    assert run.host.started["Actor"] == [*((index, 0) for index in range(actors)), *((index, 1) for index in lost)]
    logged = (run.folder.path / "faults.log").read_text()  # lines of one kind are shown once, and then counted
    for index in lost:
        message = (
            rf"env step [\d,]+: actor {index} ended \(killed\): about [1-9]\d env steps are lost, "
            "and another actor replaces it"
        )
        assert re.search(message, logged), logged
    assert any("ended (killed)" in line for line in run.lines)
    # The rollouts that continue the previous one have its last observation as their first one.
    last, breaks = {}, 0
    for rollout in run.rollouts:
        for column, lane in enumerate(rollout.lane):
            if rollout.continues_previous[column]:
                np.testing.assert_array_equal(rollout.obs["obs"][0, column], last[lane])
            else:
                breaks += 1
            last[lane] = rollout.obs["obs"][-1, column]
    assert breaks == 3 * (actors + len(lost))
    assert float(run.rows[-1]["cluster/restarts"]) == len(lost)
    assert float(run.rows[-1]["cluster/lost_env_steps"]) > 0
    assert len({id(rollout.obs["obs"]) for rollout in run.rollouts}) == len(run.rollouts)


@pytest.mark.parametrize(("algorithm", "in_flight"), [("ACER", 1), ("ACER", 3), ("A2C", 1), ("PPO", 2)])
def test_an_actor_has_a_limited_number_of_rollouts_not_learned_from(algorithm, in_flight, run_cluster, monkeypatch):
    counts, call = [], InlineHost.call

    def count(self, handle, method, *arguments):
        if method == "open":
            return call(self, handle, method, *arguments)
        actor, _ = handle.key
        learned = sum(any(lane // 3 == actor for lane in rollout.lane) for rollout in run_cluster.rollouts)
        counts.append(handle.n_calls - learned)  # the first call opened the environments
        return call(self, handle, method, *arguments)

    monkeypatch.setattr(InlineHost, "call", count)
    lag = in_flight - 1 if algorithm != "ACER" else None
    run_cluster(base={"algorithm": algorithm}, rollouts_in_flight=in_flight, max_lag=lag)
    assert len(counts) > 10
    assert max(counts) == in_flight


def test_actors_are_served_between_updates(run_cluster, monkeypatch):
    """Collections that arrive during updates are followed by requests with the weights before them."""
    events, is_learning = [], []
    run_updates, call, wait, put = cluster.run_updates, InlineHost.call, InlineHost.wait, InlineHost.put

    def learn(components, rollout, record_update):
        is_learning.append(True)
        events.append("begin")
        run_updates(components, rollout, record_update)
        events.append("end")
        is_learning.clear()

    def wait_late(self, tickets, timeout):
        ready = wait(self, tickets, timeout)
        return ready if is_learning else ready[:1] if timeout else []

    monkeypatch.setattr(cluster, "SERVICE_SHARE", 1e9)
    monkeypatch.setattr(cluster, "run_updates", learn)
    monkeypatch.setattr(InlineHost, "wait", wait_late)
    monkeypatch.setattr(InlineHost, "call", lambda *each: events.append(each[2]) or call(*each))
    monkeypatch.setattr(InlineHost, "put", lambda *each: events.append("put") or put(*each))
    run_cluster()
    during = [part.partition(" end")[0].split() for part in " ".join(events).split("begin")[1:]]
    assert any("collect" in part for part in during) and not any("put" in part for part in during)


@pytest.mark.parametrize(
    ("lost", "max_env_restarts", "message", "last"),
    [
        ({(0, 0, 2), (1, 0, 3)}, 1, r"after 1 others \(base_config.max_env_restarts is 1\)", (0, 1)),
        ({(1, replacements, 1) for replacements in range(9)}, None, "actor 1 .*before its first result", (1, 2)),
    ],
)
def test_replacements_are_limited(lost, max_env_restarts, message, last, run_cluster, hosts, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", lost)
    with pytest.raises(EnvironmentCrashed, match=message):
        run_cluster(base={"max_env_restarts": max_env_restarts})
    assert hosts[0].started["Actor"][-1] == last


class Numbered:
    """A service whose roles differ."""

    def __init__(self, index, replacements):
        self.index = index

    def open(self):
        return {"agent": self.index}


def test_a_service_with_other_roles_than_those_before_it_does_not_start():
    supervisor = Supervisor(InlineHost(), ServiceSpec(kind="Actor", make=Numbered), name="actor {}".format)
    supervisor.ensure(2)
    with pytest.raises(EnvironmentStartError, match="actor 1 has other roles than those before it"):
        supervisor.wait_for_start()


def test_rollouts_above_the_lag_limit_are_dropped_and_counted(run_cluster):
    run = run_cluster(actors=1, rollouts_in_flight=3, max_lag=1)
    assert 0 < float(run.rows[-1]["cluster/dropped_env_steps"]) < run.result.counters.env_steps
    assert max(float(row["cluster/lag_max"] or 0) for row in run.rows) == 2
    broken = [rollout for rollout in run.rollouts[1:] if not rollout.continues_previous.all()]
    assert broken
    assert all(not rollout.continues_previous.any() for rollout in broken)


@pytest.mark.parametrize("address", ["here", "ray://host:1", "host:port", ""])
def test_an_address_is_checked(address):
    with pytest.raises(UserError, match="it must be local, auto, or HOST:PORT"):
        resolve([("test", on_ray(address=address))])


ERRORS = {"replay_config": {"sampler": "prioritized", "initial_priorities": "td_error"}}


@pytest.mark.parametrize("algorithm", ["ACER", "REACTOR"])
def test_actors_compute_the_errors_that_the_learner_would(algorithm, hosts, monkeypatch):
    """Those of Reactor depend on the target network, too."""
    differences, run_updates = [], cluster.run_updates

    def compare(components, rollout, record_update):
        expected = components.learner.record_td_errors(rollout).records[TD_ERROR]
        differences.append(np.abs(rollout.records[TD_ERROR] - expected).max())
        assert np.abs(expected).max() > 0
        run_updates(components, rollout, record_update)

    monkeypatch.setattr(cluster, "run_updates", compare)
    layer = {"base_config": {"algorithm": algorithm}, "reactor_config": {"update_target_per_step": 7}}
    one = on_ray(actors=1, rollouts_in_flight=1)
    folder = train("run", SETTINGS, CHAIN, layer, ERRORS, one).folder
    assert len(differences) > 5 and max(differences) < 1e-6

    settings = folder.load_settings(("test", {"base_config": {"max_step": 300}}))
    result = build.train(settings, folder, lambda line: None)
    assert result.counters.env_steps >= 300


def test_the_learner_computes_errors_that_depend_on_its_records(run_cluster):
    """The rewards of `episodic` follow from a memory of episodes, which only the learner has."""
    run = run_cluster({"auxiliaries": {"episodic": {}}}, ERRORS)
    with np.load(run.folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        assert np.abs(arrays[f"records/{TD_ERROR}"]).max() > 0 and "records/episodic" in arrays


def test_a_run_on_a_cluster_has_a_report(run_cluster):
    run = run_cluster(base={"evaluate_every": 40, "log_every": 20})
    assert run.result.evaluation
    page = make_report(read_run(run.folder.path))
    assert all(f'data-column="cluster/{name}"' in page for name in ("lag", "queue", "actor_waiting"))


@pytest.mark.parametrize("with_targets", [False, True])
def test_parameters_statistics_and_counters_arrive_bit_for_bit(with_targets):
    role, blueprint = make_role(), Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(8))
    source, receiver = (kind(make_acer(role, blueprint, seed), role, {}, None) for seed, kind in enumerate(LEARNERS))
    batch = random_rollout(np.random.default_rng(0))
    source.observe(batch)
    update(source, batch)
    packed = pack_weights(source, with_targets)
    for array in packed.values():
        array.setflags(write=False)
    receiver.load_weights(packed)
    assert packed["statistics"].dtype == np.float64 and source.parameters.statistics.dtype == torch.float64
    for name in ("vector", "batch_statistics", "statistics", *(["all_parameters"] if with_targets else [])):
        assert getattr(receiver.parameters, name).equal(getattr(source.parameters, name))
    assert (receiver.updates, receiver.rows_seen) == (1, batch.valid.sum())


def test_columns_of_rollouts_are_joined():
    first, second = (random_rollout(np.random.default_rng(seed), columns=3) for seed in range(2))
    joined = Rollout.join_columns([first, second])
    for part, columns in ((first, np.arange(3)), (second, np.arange(3, 6))):
        taken = joined.take_columns(columns)
        for name in ("first", "raw_action", "reward", "alive", "behavior", "memory", "lane", "version"):
            np.testing.assert_array_equal(getattr(taken, name), getattr(part, name))
        np.testing.assert_array_equal(taken.obs["obs"], part.obs["obs"])
    assert Rollout.join_columns([first]) is first
