"""Learners in processes of a test, and learners whose weights are in the checkpoints, too."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait

import numpy as np

from algorithm.checkpointing.checkpoint import make_prefix
from algorithm.checkpointing.manifest import compute_digest
from algorithm.checkpointing.transfer import PackedFile
from algorithm.processes.host import ServiceLost
from algorithm.processes.learner_group import close_group
from algorithm.processes.learners import LearnerService, SavedLearner
from algorithm.processes.weights import pack_weights
from tests.prepared_processes import PREPARED


def pack_learner(learner) -> np.ndarray:
    """Return all tensors that several learners share, as bytes."""
    moments = [step.optimizer.moments.numpy() for step in learner._steps]
    arrays = [
        pack_weights(learner.parameters, with_targets=True),
        learner.parameters.all_parameters.numpy(),
        learner._counts,
        *moments,
    ]
    return np.concatenate([array.ravel().view(np.uint8) for array in arrays])


class VisibleLearner(LearnerService):
    """A learner that also saves what all learners share, in a file `shared` of each role."""

    def save(self):
        reply = super().save()
        assert isinstance(reply, SavedLearner), reply
        shared = {}
        for name, components in self._training.by_role.items():
            content = pack_learner(components.learner)
            shared[f"{make_prefix(self.rank)}{name}/shared"] = PackedFile(content, compute_digest(content))
        return replace(reply, files={**reply.files, **shared})


class LearnerProcess:
    """A process that runs one learner after another.

    Attributes:
        replies: replies that were received, by ticket; the process has ended if `is_lost`.
    """

    def __init__(self):
        self.connection, other = PREPARED.Pipe()
        self.process = PREPARED.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.replies, self.is_lost = {}, False

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)

    def close(self):
        self.process.kill()
        self.process.join()

    def receive(self):
        """Receive one reply."""
        try:
            ticket, reply = self.connection.recv()
            self.replies[ticket] = reply
        except (EOFError, OSError):
            self.is_lost = True


def serve(connection) -> None:
    server = None
    with suppress(EOFError):
        while True:
            ticket, method, arguments = connection.recv()
            if method == "start":
                close_group()
                logging.getLogger("algorithm").handlers.clear()
                make_server, numbers = arguments
                server = make_server(*numbers)
            else:
                connection.send((ticket, getattr(server, method)(*arguments)))


class LearnerProcesses:
    """A host of learners, each in one of the given processes; `calls` are the methods that were called."""

    numbers = itertools.count()

    def __init__(self, processes):
        self.processes, self.calls = processes, []

    def start(self, spec, index, replacements):
        process = self.processes[index]
        process.connection.send((None, "start", (spec.make, (index, replacements))))
        return process

    def call(self, handle, method, *arguments):
        self.calls.append(method)
        ticket = handle, next(self.numbers)
        with suppress(OSError):
            handle.connection.send((ticket[1], method, arguments))
        return ticket

    def wait(self, tickets, timeout):
        pending = {process.connection: process for process, number in tickets if number not in process.replies}
        for connection in wait(list(pending), timeout):
            pending[connection].receive()
        return [(process, number) for process, number in tickets if number in process.replies or process.is_lost]

    def fetch(self, ticket):
        process, number = ticket
        if number not in process.replies:
            raise ServiceLost("ended (killed)")
        return process.replies.pop(number)
