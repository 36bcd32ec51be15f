"""A training run with two learners on Ray, which compares what they share at the end of the run."""

import sys

import numpy as np

from algorithm.cli import main
from algorithm.processes import learners
from algorithm.processes.learners import LearnerPeers
from tests.processes.learner_process import VisibleLearner, pack_learner

save = LearnerPeers.save


def save_and_compare(self, training, actor, manifest):
    """Save a checkpoint, and print whether learner 1 equals learner 0."""
    metadata = save(self, training, actor, manifest)
    for role, components in training.by_role.items():
        other = np.fromfile(manifest.folder / f"worker-1/{role}/shared", np.uint8)
        own = pack_learner(components.learner)
        print(f"equal {np.array_equal(own, other)} after {components.learner.updates} updates of {len(own)} bytes")
    return metadata


if __name__ == "__main__":
    learners.LearnerService = VisibleLearner  # type: ignore[misc]
    LearnerPeers.save = save_and_compare  # type: ignore[method-assign]
    sys.exit(main.main(sys.argv[1:]))
