"""A host with learners in processes of a test, and learners whose weights are in the checkpoints, too."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from algorithm.checkpointing.checkpoint import make_prefix
from algorithm.checkpointing.manifest import PackedFile, compute_digest
from algorithm.processes.learners import LearnerService
from algorithm.processes.process_host import ProcessHost
from algorithm.processes.service import pack_weights
from tests.prepared_processes import PREPARED
from tests.processes.inline_host import InlineHost


def pack_learner(learner) -> np.ndarray:
    """Return all tensors that several learners share, as bytes."""
    moments = [optimizer.moments.numpy() for optimizer in learner.optimizers]
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
        files, metadata = super().save()
        shared = {}
        for name, components in self._training.by_role.items():
            content = pack_learner(components.learner)
            shared[f"{make_prefix(self.rank)}{name}/shared"] = PackedFile(content, compute_digest(content))
        return {**files, **shared}, metadata


class MixedHost(InlineHost):
    """A host with learners in other processes, and all other services in this process.

    Attributes:
        learners: the host of the learners.
        learner_calls: the methods of learners that were called.
    """

    def __init__(self):
        super().__init__()
        self.learners, self.learner_calls = ProcessHost(PREPARED), []

    def start(self, spec, *numbers):
        return (self.learners if spec.kind == "Learner" else super()).start(spec, *numbers)

    def call(self, handle, method, *arguments):
        if isinstance(handle, SimpleNamespace):
            return super().call(handle, method, *arguments)
        self.learner_calls.append(method)
        return self.learners.call(handle, method, *arguments)

    def wait(self, tickets, timeout):
        of_learners = not isinstance(next(iter(tickets))[-2], int | str)
        return (self.learners if of_learners else super()).wait(tickets, timeout)

    def fetch(self, ticket):
        return (super() if isinstance(ticket[-2], int | str) else self.learners).fetch(ticket)

    def close(self):
        self.learners.close()
