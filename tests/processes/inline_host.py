"""A host whose services are in this process, with faults."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest

from algorithm.processes.host import Host, Reply, ServiceLost, ServiceProcess
from algorithm.processes.services import Experience, start_service


class InlineHost(Host):
    """A host whose services are in this process; a call is executed when its reply is fetched.

    Attributes:
        lost: tickets whose service ends before it replies. A ticket is (*numbers of the service, number of the call);
            for other services than actors and members, it begins with their kind.
        silent: tickets that are never replied to.
        started: the numbers of each service that was started, by kind.
        handles: handles of all services.
        methods: the called methods, in order.
        killed: the numbers of each service that was killed.
        n_put: number of values that were put.
        change: changes a result on its way.
    """

    lost: set[tuple] = set()
    silent: set[tuple] = set()

    def __init__(self, change=lambda result: result):
        self.change = change
        self.started: dict[str, list[tuple[int, ...]]] = {"Actor": [], "Evaluator": [], "Member": []}
        self.handles: list[SimpleNamespace] = []
        self.methods: list[str] = []
        self.killed: list[tuple[int, ...]] = []
        self.calls: dict[tuple, partial] = {}
        self.n_put = 0
        self.is_closed = False

    def start(self, spec, *numbers):
        self.started[spec.kind].append(numbers)
        key = (spec.kind, *numbers) if spec.kind == "Evaluator" else numbers
        process = ServiceProcess(make_inline(spec), *numbers)
        self.handles.append(SimpleNamespace(process=process, service=process._service, key=key, n_calls=0))
        return self.handles[-1]

    def put(self, value):
        self.n_put += 1
        copies = deepcopy(value)
        for arrays in copies.values():
            for array in arrays.values():
                array.setflags(write=False)
        return copies

    def call(self, handle, method, *arguments):
        ticket = (*handle.key, handle.n_calls)
        handle.n_calls += 1
        self.methods.append(method)
        self.calls[ticket] = partial(handle.process.call, method, *arguments)
        return ticket

    def wait(self, tickets, timeout):
        return [ticket for ticket in tickets if ticket not in self.silent]

    def fetch(self, ticket):
        call = self.calls.pop(ticket)
        if ticket in self.lost:
            raise ServiceLost("ended (killed)")
        result = self.change(call().result)
        if isinstance(result, Experience):
            make_read_only(result)
        return Reply(result, ())

    def kill(self, handle):
        self.killed.append(handle.key)

    def close(self):
        self.is_closed = True


def make_inline(spec):
    """Return the function that makes a service, without the configuration of its process."""
    make = spec.make
    if isinstance(make, partial) and make.func is start_service:
        service_class, *arguments = make.args
        return partial(service_class, *arguments)
    return make


def make_read_only(experience):
    """Make the arrays of experience read-only, as those on Ray are."""
    for _, rollout in experience.rollouts:
        for array in (*rollout.obs.values(), rollout.reward, rollout.first, rollout.behavior, rollout.lane):
            array.setflags(write=False)


def fail_calls(monkeypatch, failure, is_failed):
    """Let all calls whose ticket `is_failed` accepts reply with a failure, after the process is open."""
    fetch = InlineHost.fetch

    def fetch_or_fail(self, ticket):
        return Reply(failure, ()) if ticket[-1] and is_failed(ticket) else fetch(self, ticket)

    monkeypatch.setattr(InlineHost, "fetch", fetch_or_fail)


def fail_once(write):
    """Return a function that raises OSError in its first call."""
    calls = []

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return write(*arguments, **options)

    return fail


@pytest.fixture
def hosts(monkeypatch):
    """Let runs on a cluster use an InlineHost. Return the list of hosts."""
    from algorithm.processes import cluster

    made = []

    def open_inline(settings, local_cpus):
        made.append(InlineHost())
        return made[-1]

    monkeypatch.setattr(cluster, "open_host", open_inline)
    return made
