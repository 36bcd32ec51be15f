"""Runs on a cluster, with actors in this process: what is learned, lag, dropped rollouts, replaced actors."""

from __future__ import annotations

import re
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.processes import cluster
from algorithm.processes.cluster import ClusterFleet
from algorithm.processes.host import Failure, ServiceSpec
from algorithm.processes.service import pack_weights
from algorithm.processes.supervisor import Supervisor
from algorithm.rollout import TD_ERROR, Rollout
from algorithm.runs import build
from algorithm.runs.run_requests import RunRequest, resume_run
from algorithm.tools.reports.report_files import make_report
from algorithm.tools.reports.run_data import read_run
from algorithm.training.metrics import read_table
from tests.checkpointing.test_resume import SETTINGS, train_run
from tests.processes.inline_host import InlineHost, fail_calls
from tests.processes.test_workers_runtime import new_run
from tests.test_learning import CONVERGING, PROBE, SECTIONS, read_values, restore
from tests.unity_player.launcher import make_player

CHAIN = {"base_config": {"env_type": "PROBE", "env_name": "chain"}}


def train(tmp_path, name, *layers, lines=None):
    """Train a new run. Return its settings, folder and result."""
    settings = resolve([("test", layer) for layer in layers])
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    folder = RunFolder.create("test", source, name, settings.tree)
    return settings, folder, build.train(settings, folder, (lines if lines is not None else []).append)


def on_ray(**cluster):
    return {"base_config": {"runtime": "RAY"}, "cluster_config": cluster}


def read_weights(folder):
    return folder.find_latest().weights("agent")["parameters"]


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_one_actor_without_lag_equals_the_local_runtime(algorithm, hosts, tmp_path):
    base = {"base_config": {"algorithm": algorithm, "max_step": 150, "save_every": None}}
    _, cluster, result = train(tmp_path, "cluster", SETTINGS, CHAIN, base, on_ray(actors=1, max_lag=0))
    same_end = {"base_config": {"max_step": result.counters.env_steps}}  # after a complete rollout
    _, local, _ = train(tmp_path, "local", SETTINGS, CHAIN, base, same_end)
    expected = read_weights(local)
    for group, values in read_weights(cluster).items():
        assert torch.equal(values, expected[group])
    assert result.counters.updates == local.find_latest().counters.updates > 5


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_values_are_learned_through_lag(lag, hosts, tmp_path):
    section = {"gamma": 0.9, **SECTIONS["ACER"], **CONVERGING}
    layer = {"base_config": {**PROBE, "env_name": "leak", "max_step": 6_000}, "acer_config": section}
    settings, folder, _ = train(tmp_path, "run", layer, on_ray(actors=1, rollouts_in_flight=lag + 1, max_lag=lag))
    rows = read_table(folder.path / "metrics.csv").rows
    assert {float(row["cluster/lag"]) for row in rows[1:] if row["cluster/lag"]} == {lag}
    q = read_values("ACER", *restore(settings, folder), section).numpy()
    np.testing.assert_allclose(q[0], -41, atol=2)
    np.testing.assert_allclose(q[1], 10, atol=1)


KINDS = [
    "acer, prioritized, gru, iterations",
    "acer, continuous, noisy and normalized",
    "sac, noisy layers",
    "reactor, lazy, memories of policy and critic",
    "a2c, rnd",
    "ppo, curiosity, recurrent",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_agent_trains_and_resumes_with_more_actors(kind, hosts, tmp_path, monkeypatch):
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
def test_a_run_on_a_cluster_keeps_its_environments(changes, message, hosts, tmp_path, monkeypatch):
    _, folder, _ = train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=2))
    monkeypatch.setattr(RunFolder, "find", lambda env, name: RunFolder(folder.path))
    with ExitStack() as stack:
        if message:
            stack.enter_context(
                pytest.raises(UserError, match=f"{message}: the saved run has .* cluster_config.actors=2")
            )
        _, settings = stack.enter_context(resume_run(RunRequest(env="test", layers=[("test", changes)]), print))
        assert settings.cluster.actors == 3


def test_a_run_continues_in_one_process_and_on_the_cluster_again(hosts, tmp_path, monkeypatch):
    _, folder, _ = train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=1))
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


def test_actors_receive_the_number_of_rows_of_all_roles(hosts, tmp_path):
    pytest.importorskip("pettingzoo")
    race = {"env_type": "PETTINGZOO", "env_name": "tests.adapters.parallel:Race", "algorithm": "A2C", "max_step": 400}
    _, folder, _ = train(tmp_path, "run", {"base_config": race, "a2c_config": {"rollout_length": 4}}, on_ray(actors=1))
    (handle,) = hosts[0].handles
    checkpoint, by_role = folder.find_latest(), handle.service.training.by_role
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
    _, folder, result = train(tmp_path, "run", on_ray(actors=2), {"base_config": base}, agent)
    assert result.counters.env_steps >= 1200
    assert folder.find_latest().lanes("3DBall") == (24, 24)


def record_rollouts(monkeypatch):
    """Return a list that receives every rollout that is learned from."""
    rollouts, run_updates = [], cluster.run_updates

    def record(components, rollout, record_update):
        rollouts.append(rollout)
        run_updates(components, rollout, record_update)

    monkeypatch.setattr(cluster, "run_updates", record)
    return rollouts


def test_rollouts_of_one_version_are_joined_without_a_replay(hosts, tmp_path, monkeypatch):
    rollouts = record_rollouts(monkeypatch)
    base = {"base_config": {"algorithm": "A2C"}}
    train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=3, max_lag=0))
    for update, rollout in enumerate(rollouts):
        assert sorted(rollout.lane) == list(range(9))
        assert set(rollout.version) == {update}
    assert hosts[0].n_put == len(rollouts)


@pytest.mark.parametrize("algorithm", ["ACER", "SAC"])
def test_a_rollout_is_first_copied_into_the_replay(algorithm, hosts, tmp_path, monkeypatch):
    """The arrays of a rollout are views of shared memory, and those that arrive are those that are added."""
    delivered, rollouts, fetch = [], record_rollouts(monkeypatch), InlineHost.fetch

    def record(self, ticket):
        reply = fetch(self, ticket)
        delivered.extend(rollout for _, rollout in getattr(reply.result, "rollouts", ()))
        return reply

    monkeypatch.setattr(InlineHost, "fetch", record)
    train(tmp_path, "run", SETTINGS, CHAIN, {"base_config": {"algorithm": algorithm}}, on_ray(actors=2))
    assert len(rollouts) > 5
    addresses = {rollout.obs["obs"].ctypes.data for rollout in delivered}
    assert all(rollout.obs["obs"].ctypes.data in addresses for rollout in rollouts)


LARGER = {"base_config": {"max_step": 400}, "replay_config": {"capacity": 400}}


@pytest.mark.parametrize(("actors", "lost"), [(2, [1]), (4, [1, 3])], ids=["one of two", "two of four"])
def test_lost_actors_are_replaced_and_no_rollout_is_learned_from_twice(actors, lost, hosts, tmp_path, monkeypatch):
    rollouts, lines = record_rollouts(monkeypatch), []
    monkeypatch.setattr(InlineHost, "lost", {(index, 0, 3) for index in lost})  # their third requests
    _, folder, _ = train(tmp_path, "run", SETTINGS, CHAIN, LARGER, on_ray(actors=actors), lines=lines)
    assert hosts[0].started["Actor"] == [*((index, 0) for index in range(actors)), *((index, 1) for index in lost)]
    logged = (folder.path / "faults.log").read_text()  # lines of one kind are shown once, and then counted
    for index in lost:
        message = (
            rf"env step [\d,]+: actor {index} ended \(killed\): about [1-9]\d env steps are lost, "
            "and another actor replaces it"
        )
        assert re.search(message, logged), logged
    assert any("ended (killed)" in line for line in lines)
    # The rollouts that continue the previous one have its last observation as their first one.
    last = {}
    breaks = 0
    for rollout in rollouts:
        for column, lane in enumerate(rollout.lane):
            if rollout.continues_previous[column]:
                np.testing.assert_array_equal(rollout.obs["obs"][0, column], last[lane])
            else:
                breaks += 1
            last[lane] = rollout.obs["obs"][-1, column]
    assert breaks == 3 * (actors + len(lost))
    rows = read_table(folder.path / "metrics.csv").rows
    assert float(rows[-1]["cluster/restarts"]) == len(lost)
    assert float(rows[-1]["cluster/lost_env_steps"]) > 0
    assert len({id(rollout.obs["obs"]) for rollout in rollouts}) == len(rollouts)


@pytest.mark.parametrize(("algorithm", "in_flight"), [("ACER", 1), ("ACER", 3), ("A2C", 1), ("PPO", 2)])
def test_an_actor_has_a_limited_number_of_rollouts_that_are_not_learned_from(
    algorithm, in_flight, hosts, tmp_path, monkeypatch
):
    rollouts, counts = record_rollouts(monkeypatch), []
    call = InlineHost.call

    def count(self, handle, method, *arguments):
        if method == "open":
            return call(self, handle, method, *arguments)
        actor, _ = handle.key
        learned = sum(any(lane // 3 == actor for lane in rollout.lane) for rollout in rollouts)
        counts.append(handle.n_calls - learned)  # the first call opened the environments
        return call(self, handle, method, *arguments)

    monkeypatch.setattr(InlineHost, "call", count)
    base = {"base_config": {"algorithm": algorithm}}
    lag = in_flight - 1 if algorithm != "ACER" else None
    train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=2, rollouts_in_flight=in_flight, max_lag=lag))
    assert len(counts) > 10
    assert max(counts) == in_flight


def test_actors_are_served_between_updates(hosts, tmp_path, monkeypatch):
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
    train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=2))
    during = [part.partition(" end")[0].split() for part in " ".join(events).split("begin")[1:]]
    assert any("collect" in part for part in during) and not any("put" in part for part in during)


def test_a_silent_actor_is_replaced_after_the_time_limit(hosts, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(InlineHost, "silent", {(0, 0, 2)})
    monkeypatch.setattr(cluster, "DISPLAY_INTERVAL", 0.01)
    train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=1, timeout=0.1), lines=lines)
    assert hosts[0].started["Actor"] == [(0, 0), (0, 1)]
    assert [line for line in lines if "actor 0 has not replied for 0.1 s (cluster_config.timeout)" in line]


def test_replacements_are_limited(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {(0, 0, 2), (1, 0, 3)})
    base = {"base_config": {"max_env_restarts": 1}}
    with pytest.raises(EnvironmentCrashed, match=r"after 1 others \(base_config.max_env_restarts is 1\)"):
        train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=2))


def test_an_actor_that_never_collects_is_not_replaced_forever(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {(1, replacements, 1) for replacements in range(9)})
    base = {"base_config": {"max_env_restarts": None}}
    with pytest.raises(EnvironmentCrashed, match="actor 1 .*before its first result"):
        train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=2))
    assert hosts[0].started["Actor"][-1] == (1, 2)


def test_the_exception_of_an_actor_ends_the_run(hosts, tmp_path, monkeypatch):
    failure = Failure(ZeroDivisionError("in step"), "its traceback")
    fail_calls(monkeypatch, failure, lambda ticket: ticket[2] == 3)
    with pytest.raises(ZeroDivisionError, match="in step") as raised:
        train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=2))
    assert "its traceback" in str(raised.value.__cause__)


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


def test_rollouts_above_the_lag_limit_are_dropped_and_counted(hosts, tmp_path, monkeypatch):
    rollouts = record_rollouts(monkeypatch)
    _, folder, result = train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=1, rollouts_in_flight=3, max_lag=1))
    rows = read_table(folder.path / "metrics.csv").rows
    dropped = float(rows[-1]["cluster/dropped_env_steps"])
    assert 0 < dropped < result.counters.env_steps
    assert max(float(row["cluster/lag_max"] or 0) for row in rows) == 2
    broken = [rollout for rollout in rollouts[1:] if not rollout.continues_previous.all()]
    assert broken
    assert all(not rollout.continues_previous.any() for rollout in broken)


def test_lag_without_a_replay_needs_a_limit_that_allows_it():
    layers = {"base_config": {"runtime": "RAY", "algorithm": "PPO"}}
    for limit in (None, 1):
        ClusterFleet.check(resolve([("test", layers), ("test", on_ray(rollouts_in_flight=2, max_lag=limit))]))
    with pytest.raises(UserError, match="set max_lag to at least 1"):
        ClusterFleet.check(resolve([("test", layers), ("test", on_ray(rollouts_in_flight=2, max_lag=0))]))


@pytest.mark.parametrize("address", ["here", "ray://host:1", "host:port", ""])
def test_an_address_is_checked(address):
    with pytest.raises(UserError, match="it must be local, auto, or HOST:PORT"):
        resolve([("test", on_ray(address=address))])


ERRORS = {"replay_config": {"sampler": "prioritized", "initial_priorities": "td_error"}}


@pytest.mark.parametrize("algorithm", ["ACER", "REACTOR"])
def test_actors_compute_the_errors_that_the_learner_would(algorithm, hosts, tmp_path, monkeypatch):
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
    _, folder, _ = train(tmp_path, "run", SETTINGS, CHAIN, layer, ERRORS, one)
    assert len(differences) > 5 and max(differences) < 1e-6

    settings = folder.load_settings(("test", {"base_config": {"max_step": 300}}))
    result = build.train(settings, folder, lambda line: None)
    assert result.counters.env_steps >= 300


def test_the_learner_computes_errors_that_depend_on_its_records(hosts, tmp_path):
    """The rewards of `episodic` follow from a memory of episodes, which only the learner has."""
    layer = {"auxiliaries": {"episodic": {}}}
    _, folder, _ = train(tmp_path, "run", SETTINGS, CHAIN, layer, ERRORS, on_ray(actors=2))
    with np.load(folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        assert np.abs(arrays[f"records/{TD_ERROR}"]).max() > 0 and "records/episodic" in arrays


def test_a_run_on_a_cluster_has_a_report(hosts, tmp_path):
    base = {"base_config": {"evaluate_every": 40, "log_every": 20}}
    _, folder, result = train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=2))
    assert result.evaluation
    page = make_report(read_run(folder.path))
    assert all(f'data-column="cluster/{name}"' in page for name in ("lag", "queue", "actor_waiting"))


# Its observations are normalized; those of a probe are one-hot, and are not.
CARTPOLE = {"base_config": {"algorithm": "A2C", "env_type": "GYM", "env_name": "CartPole-v1"}}


@pytest.fixture
def normalizing(tmp_path):
    """Let the network of runs below `tmp_path` normalize observations."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "nn.py").write_text(
        "from algorithm.networks import Blueprint, Mlp, Vector\n"
        "blueprint = Blueprint(encoders={'*': Vector(normalize=True)}, body=Mlp(8))\n"
    )


def test_statistics_of_all_actors_are_merged(hosts, tmp_path, monkeypatch, normalizing):
    rollouts = record_rollouts(monkeypatch)
    _, folder, _ = train(tmp_path, "run", SETTINGS, CARTPOLE, on_ray(actors=2))
    rows = np.concatenate([rollout.obs["obs"][:-1][rollout.valid] for rollout in rollouts]).astype(np.float64)
    assert {lane // 3 for rollout in rollouts for lane in rollout.lane} == {0, 1}
    saved = folder.find_latest().weights("agent")["statistics"]
    (statistics,) = [values.numpy() for name, values in saved.items() if name.startswith("obs/")]
    deviations = ((rows - rows.mean(0)) ** 2).sum(0)
    expected = np.concatenate([rows.mean(0), deviations, [len(rows)]])
    np.testing.assert_allclose(statistics, expected, rtol=1e-9)
    # Each actor has the statistics of a version of the learner, and so of both actors.
    for handle in hosts[0].handles:
        received = handle.service.training.by_role["agent"].learner.parameters.statistics.numpy()
        assert len(rows) / 2 < received[-1] <= len(rows)


def test_an_actor_receives_parameters_and_statistics_bit_for_bit(hosts, tmp_path, normalizing):
    train(tmp_path, "run", SETTINGS, CARTPOLE, on_ray(actors=1, max_lag=0))
    (handle,) = hosts[0].handles
    learner = handle.service.training.by_role["agent"].learner
    packed = pack_weights(learner.parameters, with_targets=False)
    assert packed.dtype == np.float32
    assert learner.parameters.statistics.dtype == torch.float64
    assert learner.parameters.statistics.abs().sum() > 0

    changed = packed.copy()
    changed[: len(learner.parameters.vector)] += 1
    changed.view(np.uint32)[-1] ^= 1  # a high bit of the last statistic
    changed.setflags(write=False)
    learner.receive(changed, 7, 11)
    assert (learner.updates, learner.rows_seen) == (7, 11)
    np.testing.assert_array_equal(
        pack_weights(learner.parameters, with_targets=False).view(np.uint32), changed.view(np.uint32)
    )


def test_columns_of_rollouts_are_joined(hosts, tmp_path, monkeypatch):
    rollouts = record_rollouts(monkeypatch)
    train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=1))
    first, second = rollouts[:2]
    joined = Rollout.join_columns([first, second])
    for part, columns in ((first, np.arange(3)), (second, np.arange(3, 6))):
        taken = joined.take_columns(columns)
        for name in ("first", "raw_action", "reward", "alive", "behavior", "memory", "lane", "version"):
            np.testing.assert_array_equal(getattr(taken, name), getattr(part, name))
        np.testing.assert_array_equal(taken.obs["obs"], part.obs["obs"])
    assert Rollout.join_columns([first]) is first
