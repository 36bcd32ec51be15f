"""The best checkpoint has a name, and is never pruned."""

import pytest

from algorithm.loop.best import Best
from algorithm.loop.checkpoint import CheckpointError
from algorithm.loop.checkpoints import Checkpoints
from algorithm.loop.history import Counters
from algorithm.loop.parts import Parts


class Nothing:
    """An actor that cannot be put back, and a monitor that decides nothing."""

    def state(self):
        return {}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def save(checkpoints, *env_steps):
    for each in env_steps:
        checkpoint = checkpoints.save(Parts(None, None), Counters(each), Nothing(), Nothing())
    return checkpoint


def kept(checkpoints):
    return sorted(int(path.name) for path in checkpoints.folder.iterdir() if path.is_dir())


def test_without_an_evaluation_there_is_no_best(checkpoints):
    assert checkpoints.best.checkpoint is None
    assert checkpoints.best.mean == float("-inf")


def test_the_best_outlives_the_newest_and_goes_when_there_is_a_better_one(checkpoints):
    checkpoints.best.name(save(checkpoints, 1, 2), 7.5)
    save(checkpoints, 3, 4, 5)
    assert kept(checkpoints) == [2, 4, 5]
    checkpoints.best.name(save(checkpoints, 6), 8.0)
    assert checkpoints.best.checkpoint.counters.env_steps == 6
    save(checkpoints, 7)
    assert kept(checkpoints) == [6, 7]
    assert checkpoints.latest(print).counters.env_steps == 7


def test_another_process_finds_it(checkpoints):
    checkpoints.best.name(save(checkpoints, 3), -12.25)
    again = Best(checkpoints.folder)
    assert (again.checkpoint.counters.env_steps, again.mean) == (3, -12.25)


@pytest.mark.parametrize("text", ["", "[]", '{"checkpoint": "1"}', '{"checkpoint": "1", "return": "high"}'])
def test_a_broken_file_is_named(checkpoints, text):
    save(checkpoints, 1)
    checkpoints.best.path.write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json"):
        checkpoints.best.mean  # noqa: B018
