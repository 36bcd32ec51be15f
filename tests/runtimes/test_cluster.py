"""Runs on a cluster, with actors in this process: what is learned, lag, dropped rollouts, replaced actors."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.runs import build
from algorithm.runs.cluster import make_actor_group, make_actor_task
from algorithm.runs.rollout_actor import make_rollout_actor
from algorithm.runs.run_folder import RunFolder
from algorithm.runtimes.actor_host import ActorHost, ActorLost
from tests.checkpointing.test_resume import SETTINGS
from tests.test_learning import PROBE, evaluate_states

CHAIN = {"base_config": {"env_type": "PROBE", "env_name": "chain"}}


class InlineHost(ActorHost):
    """A host whose actors collect in this process, when `wait` is called.

    Attributes:
        started: index and replacements of each actor that was started.
        lost: tickets whose actor ends before it replies.
        n_collected: number of collections.
    """

    def __init__(self, make_server):
        self.make_server = make_server
        self.started: list[tuple[int, int]] = []
        self.lost: set[int] = set()
        self.silent: set[int] = set()
        self.calls: dict[int, object] = {}
        self.n_published = 0

    def start(self, index, replacements):
        self.started.append((index, replacements))
        return deque([self.make_server(index, replacements)])

    def open(self, handle):
        return self._add(lambda: handle[0].roles)

    def publish(self, weights):
        self.n_published += 1
        copies = {role: array.copy() for role, array in weights.items()}
        for array in copies.values():
            array.setflags(write=False)
        return copies

    def request(self, handle, weights, request):
        return self._add(lambda: read_only(handle[0].collect(weights, request)))

    def wait(self, tickets, timeout):
        return [ticket for ticket in tickets if ticket not in self.silent]

    def fetch(self, ticket):
        call = self.calls.pop(ticket)
        if ticket in self.lost:
            raise ActorLost("killed")
        return call()

    def kill(self, handle):
        handle.clear()

    def _add(self, call):
        ticket = 1 + max(self.calls, default=0) + 1000 * len(self.started)
        self.calls[ticket] = call
        return ticket


def read_only(collection):
    for _, rollout in collection.rollouts:
        for array in (*rollout.obs.values(), rollout.reward, rollout.first, rollout.behavior, rollout.lane):
            array.setflags(write=False)
    return collection


@pytest.fixture
def hosts(monkeypatch):
    """Let runs on a cluster use an InlineHost. Return the list of hosts."""
    made = []

    @contextmanager
    def open_inline(settings, folder, env_steps):
        task = make_actor_task(settings, folder, env_steps)
        host = InlineHost(lambda index, replacements: make_rollout_actor(task, index, replacements, []))
        made.append(host)
        group = make_actor_group(settings, host)
        group.open()
        yield group
        group.close()

    monkeypatch.setattr(build, "open_cluster", open_inline)
    return made


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
    layer = {
        "base_config": {"env_name": "leak", "max_step": 12_000},
        "acer_config": {"learning_rate": 0.01, "learning_rate_schedule": "linear"},
    }
    settings, folder, _ = train(
        tmp_path, "run", PROBE, layer, on_ray(actors=1, rollouts_in_flight=lag + 1, max_lag=lag)
    )
    q, _ = evaluate_states(settings, folder)
    np.testing.assert_allclose(q[0], -41, atol=2)
    np.testing.assert_allclose(q[1], 10, atol=1)
