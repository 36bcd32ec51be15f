"""Costs of a cluster, each measured separately: messages through Ray, copies, and updates of the learner.

The costs of the learner are CPU seconds of its thread, and those of an actor the smallest wall time of the repeats, so
that other processes of the machine change them little.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from cluster_model import Measurement
from measure import format_spread

from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import resolve
from algorithm.networks.default_network import make_default_blueprint
from algorithm.processes.host import Host, ServiceSpec
from algorithm.processes.ray_host import RayHost
from algorithm.processes.services import Experience, pack_weights
from algorithm.processes.supervisor import Supervisor
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

IMAGE = (4, 84, 84)
ACTIONS = 4
SEQUENCE_LENGTH = 20


class CopyingServer:
    """An actor that copies the array that it receives, and returns the seconds."""

    def __init__(self, index: int, replacements: int):
        self.copy = np.empty(0, np.float32)

    def open(self) -> None:
        """Do nothing."""

    def collect(self, weights: dict[str, np.ndarray], size: int) -> tuple[float, float]:
        """Return the seconds of the first copy into an existing array, and of a second one."""
        if len(self.copy) != size:
            self.copy = np.ones(size, np.float32)
        seconds = []
        for _ in range(2):
            start = perf_counter()
            self.copy[:] = weights["agent"]
            seconds.append(perf_counter() - start)
        return seconds[0], seconds[1]


class RolloutServer:
    """An actor that returns rollouts of random observations.

    Args:
        rows: rows of a rollout.
        lanes: lanes of a rollout.
        shape: shape of an observation of bytes.
    """

    def __init__(self, rows: int, lanes: int, shape: tuple[int, ...], index: int, replacements: int):
        self.rollout = make_rollout(np.random.default_rng(index), rows, lanes, shape)
        self.role = Role(lanes, {"obs": ObsSpec(shape, "uint8")}, ActionSpec(branches=(ACTIONS,)))

    def open(self) -> dict[str, Role]:
        """Return the role."""
        return {"agent": self.role}

    def collect(self, weights: Any, version: int, iterations: int, fraction_done: float) -> Experience:
        """Return the same rollout for every request."""
        rows, lanes = self.rollout.reward.shape
        return Experience(
            version=version,
            rollouts=[("agent", self.rollout)],
            env_steps=rows * lanes,
            episodes=[],
            active_lanes={"agent": np.ones(lanes, bool)},
            waiting_seconds=0.0,
            seconds=0.0,
            cpu_seconds=0.0,
        )


class OneActorHost(RayHost):
    """A host whose actors are all the same process, so that a group of many actors needs no memory for them."""

    handle: Any = None

    def start(self, spec: ServiceSpec, *numbers: int) -> Any:
        self.handle = self.handle or super().start(spec, *numbers)
        return self.handle


def make_rollout(
    rng: np.random.Generator, rows: int, lanes: int, shape: tuple[int, ...], dtype: str = "uint8"
) -> Rollout:
    """Return a rollout of random observations."""
    return Rollout(
        obs={"obs": rng.integers(0, 255, (rows + 1, lanes, *shape), np.uint8).astype(dtype, copy=False)},
        first=np.zeros((rows + 1, lanes), bool),
        raw_action=np.zeros((rows, lanes, 1), np.float32),
        reward=np.zeros((rows, lanes), np.float32),
        alive=np.ones((rows, lanes), bool),
        behavior=np.zeros((rows, lanes, ACTIONS), np.float32),
        memory=np.zeros((lanes, 0), np.float32),
        lane=np.arange(lanes),
        continues_previous=np.ones(lanes, bool),
        weight=np.ones(lanes, np.float32),
        index=np.full(lanes, -1),
        version=np.zeros(lanes, np.int64),
    )


def open_host(host_class: type[RayHost] = RayHost) -> RayHost:
    """Return a local cluster."""
    return host_class(address="local", local_cpus=2, uses_tokens=False)


def make_spec(server: Any) -> ServiceSpec:
    """Return the data from which actors start."""
    return ServiceSpec(kind="Actor", make=server, cpus=0.1)


def start_actors(host: Host, server: Any, actors: int) -> list[Any]:
    """Return the handles of actors that are ready."""
    spec = make_spec(server)
    handles = [host.start(spec, index, 0) for index in range(actors)]
    fetch_all(host, [host.call(handle, "open") for handle in handles])
    return handles


def wait_for_all(host: Host, tickets: list[Any]) -> None:
    """Wait until all tickets have replies."""
    waiting = set(tickets)
    while waiting:
        waiting -= set(host.wait(list(waiting), 60.0))


def fetch_all(host: Host, tickets: list[Any]) -> list[Any]:
    """Wait for all tickets, and return the replies."""
    wait_for_all(host, tickets)
    return [host.fetch(ticket).result for ticket in tickets]


def measure_weights(host: Host, handles: list[Any], parameters: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds of weights that actors receive and copy.

    Returns:
        publish: once for all actors; publish_cpu: the same in CPU seconds; receive: per actor; copy: a second copy of
        the same array in an actor.
    """
    weights = np.ones(parameters, np.float32)
    seconds: dict[str, list[float]] = {"publish": [], "publish_cpu": [], "receive": [], "copy": []}
    for repeat in range(repeats + 1):  # the first one allocates memory
        start, cpu_start = perf_counter(), thread_time()
        reference = host.put({"agent": np.concatenate([weights])})  # `pack_weights` copies, too
        published_at, cpu_end = perf_counter(), thread_time()
        copies = fetch_all(host, [host.call(handle, "collect", reference, parameters) for handle in handles])
        if repeat:
            seconds["publish"].append(published_at - start)
            seconds["publish_cpu"].append(cpu_end - cpu_start)
            seconds["receive"].append((perf_counter() - published_at) / len(handles))
            seconds["copy"] += [second for _, second in copies]
    return seconds


def print_weights(parameters: int, actors: int, repeats: int) -> None:
    """Print the time per actor in which actors receive and copy weights, and the time of a copy."""
    host = open_host()
    found = measure_weights(host, start_actors(host, CopyingServer, actors), parameters, repeats)
    host.close()
    publish, _, receive, copy = (format_spread((1000 * each for each in seconds), 1) for seconds in found.values())
    print(
        f"weights of {parameters:,} parameters to {actors} actors: publish {publish} ms, receive {receive} ms per "
        f"actor; a copy in an actor takes {copy} ms"
    )


def print_rollouts(repeats: int) -> None:
    """Print the time in which a rollout of images is received and added to a replay, and the time of a copy.

    Every second rollout is copied into an array instead, which is as large as the replay and was written before. So
    both read a rollout that no other code of this process has read.
    """
    rows, lanes, columns = 40, 8, 10
    host = open_host()
    (handle,) = start_actors(host, partial(RolloutServer, rows, lanes, IMAGE), 1)
    replay = make_replay(rows, lanes, columns)
    copy = np.ones((columns, rows + 1, lanes, *IMAGE), np.uint8)
    seconds: dict[str, list[float]] = {"fetch": [], "add": [], "copy": []}
    for number in range(2 * (columns + repeats)):
        ticket = host.call(handle, "collect", None, 0, 0, 0.0)
        host.wait([ticket], 60.0)
        start = perf_counter()
        ((_, rollout),) = host.fetch(ticket).result.rollouts
        arrived = perf_counter()
        if number % 2:
            copy[number // 2 % columns] = rollout.obs["obs"]
        else:
            replay.add(rollout)
        end = perf_counter()
        if number >= 2 * columns:  # the first ones allocate memory
            seconds["fetch"].append(arrived - start)
            seconds["copy" if number % 2 else "add"].append(end - arrived)
    host.close()
    size = rollout.obs["obs"].nbytes / 1e6
    fetch, add, copied = (format_spread((1000 * each for each in found), 2) for found in seconds.values())
    print(f"rollouts of {size:.0f} MB: fetch {fetch} ms, add to the replay {add} ms; a plain copy takes {copied} ms")


def make_replay(rows: int, lanes: int, columns: int) -> Replay:
    """Return a replay of some columns for each lane."""
    length = min(rows, SEQUENCE_LENGTH)
    rng = np.random.default_rng(0)
    return Replay(capacity=columns * rows * lanes, lanes=lanes, chunk=rows, length=length, rng=rng)


def measure_rollouts(rows: int, shape: tuple[int, ...], actors: int, repeats: int) -> Measurement:
    """Return the learner's CPU seconds for a rollout of one lane, of a group of actors.

    All actors have replied before the time is measured. It includes what the runtime does with every rollout: it sends
    requests, looks for replies of all actors, fetches one and adds it to the replay.
    """
    host = open_host(OneActorHost)
    supervisor = Supervisor(host, make_spec(partial(RolloutServer, rows, 1, shape)), name="actor {}".format)
    supervisor.ensure(actors)
    supervisor.wait_for_start(needed=actors)
    reference = host.put({"agent": np.zeros(1000, np.float32)})
    replay = make_replay(rows, actors, 2)
    seconds = []
    for repeat in range(2 + max(3, min(repeats, 100 // actors))):  # the first ones allocate memory
        _request(supervisor, reference)
        wait_for_all(host, [service.calls[0][0] for service in supervisor.services])
        start, received = thread_time(), 0
        while received < actors:
            for service, reply in supervisor.poll(1.0):
                _request(supervisor, reference)
                ((_, rollout),) = reply.rollouts
                replay.add(replace(rollout, lane=rollout.lane + service.index))
                received += 1
        if repeat >= 2:
            seconds.append((thread_time() - start) / received)
        list(supervisor.gather(60.0))
    ((_, rollout),) = RolloutServer(rows, 1, shape, 0, 0).collect(None, 0, 0, 0.0).rollouts
    host.close()
    quantities = {"megabytes": rollout.obs["obs"].nbytes / 1e6, "actors": actors}
    return Measurement(quantities, float(np.median(seconds)))


def _request(supervisor: Supervisor, weights: Any) -> None:
    """Send a request to each actor without one, as `ClusterFleet` does."""
    for service in supervisor.services:
        if not service.calls:
            supervisor.call(service, "collect", weights, 0, 0, 0.0, timeout=600.0)


def make_learner(shape: tuple[int, ...], dtype: str) -> Learner:
    """Return a learner of ACER with the default network."""
    role = Role(1, {"obs": ObsSpec(shape, dtype, high=255.0)}, ActionSpec(branches=(ACTIONS,)))
    return Learner(
        Acer(resolve([]).agent, make_default_blueprint(role), role, np.random.default_rng(0)), role, {}, None
    )


def measure_update(learner: Learner, shape: tuple[int, ...], dtype: str, sequences: int, repeats: int) -> Measurement:
    """Return the CPU seconds to sample a batch of sequences and to learn from it."""
    replay = make_replay(SEQUENCE_LENGTH, 8, 10)
    rollout = make_rollout(np.random.default_rng(0), SEQUENCE_LENGTH, 8, shape, dtype)
    for _ in range(10):
        replay.add(rollout)
    seconds = []
    for _ in range(repeats + 2):
        start = thread_time()
        batch = replay.sample(sequences)
        assert batch is not None
        learner.compute_gradients(batch)
        learner.apply_gradients()
        seconds.append(thread_time() - start)
    return Measurement({"rows": sequences * SEQUENCE_LENGTH}, float(np.median(seconds[2:])))


def count_parameters(learner: Learner) -> float:
    """Return the number of published values, in millions."""
    return sum(map(len, pack_weights(learner, with_targets=False).values())) / 1e6
