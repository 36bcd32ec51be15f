"""The record of the best checkpoint, which is never removed."""

import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError, write_all
from algorithm.checkpointing.store import BestCheckpoint, CheckpointStore, CheckpointWriter
from algorithm.parts.run_folder import RunFolder
from algorithm.training.components import TrainingComponents
from algorithm.training.progress import Counters

NO_STATE = SimpleNamespace(state=lambda: None)  # an actor whose episodes cannot be restored


@pytest.fixture
def checkpoints(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


@pytest.fixture
def many_checkpoints(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=9)


def prepare_again(checkpoints):
    """Return the store as another process prepares it for training, and the lines that are logged."""
    again, logged = CheckpointStore(checkpoints.folder, checkpoints.keep), []
    again.prepare(again.latest(lambda line: None), logged.append)
    return again, logged


def save(checkpoints, *env_steps):
    for each in env_steps:
        write_parts = partial(write_all, TrainingComponents(None, None), NO_STATE)
        writer = CheckpointWriter(checkpoints, write_parts, {}, print)
        checkpoint = writer.write(Counters(env_steps=each))
    return checkpoint


def kept(checkpoints):
    return sorted(int(path.name) for path in checkpoints.folder.iterdir() if path.is_dir())


def test_a_best_checkpoint_that_is_replaced_is_the_best_no_longer(checkpoints):
    checkpoints.best.set_best(save(checkpoints, 10), 7.5)
    save(checkpoints, 5)
    assert kept(checkpoints) == [5] and checkpoints.best.mean == float("-inf")


def test_the_best_is_kept_until_there_is_a_better_one(checkpoints):
    assert checkpoints.best.checkpoint is None and checkpoints.best.mean == float("-inf")
    checkpoints.best.set_best(save(checkpoints, 1, 2), 7.5)
    save(checkpoints, 3, 4, 5)
    assert kept(checkpoints) == [2, 4, 5]
    checkpoints.best.set_best(save(checkpoints, 6), 8.0)
    for best in (checkpoints.best, BestCheckpoint(checkpoints.folder)):  # also in another process
        assert (best.checkpoint.counters.env_steps, best.mean) == (6, 8)
    save(checkpoints, 7)
    assert kept(checkpoints) == [6, 7]
    assert checkpoints.latest(print).counters.env_steps == 7


# Damage of other kinds is tested with all records.
DAMAGED = [
    '{"checkpoint": "000000000001", "return": "high"}',
    '{"checkpoint": "000000000001", "return": Infinity}',
    '{"checkpoint": "../elsewhere", "return": 2}',
    '{"checkpoint": "000000000009", "return": 2}',  # a link to elsewhere
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_an_error_with_its_path(checkpoints, text):
    saved = save(checkpoints, 1)
    shutil.copytree(saved.folder, checkpoints.folder.parent / "elsewhere")
    (checkpoints.folder / "000000000009").symlink_to(checkpoints.folder.parent / "elsewhere")
    checkpoints.best.path.write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json is damaged"):
        BestCheckpoint(checkpoints.folder).mean  # noqa: B018


def evaluated(checkpoints, means):
    """Return a store with a checkpoint for each number of env steps; those with a mean return have an evaluation."""
    (checkpoints.folder.parent / "metrics.csv").write_text(
        "env_steps,eval/return/red,eval/return_low/red,eval/return/blue\n"
        + "".join(f"{steps},{mean - 1},-99,{mean + 1}\n" for steps, mean in means.items() if mean is not None)
    )
    for steps, mean in means.items():
        checkpoint = save(checkpoints, steps)
        if mean is not None and mean > checkpoints.best.mean:
            checkpoints.best.set_best(checkpoint, mean)


HARM = {
    "damaged": lambda path: path.write_bytes(b'{"checkp\xff'),
    "missing": lambda path: path.unlink(),
    "naming a damaged one": lambda path: path.write_text('{"checkpoint": "000000000004", "return": 9.0}'),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_record_is_recovered_from_the_metrics(many_checkpoints, harm):
    evaluated(many_checkpoints, {1: 5.0, 2: 5.0, 3: None, 4: 7.0, 5: 4.0})
    (many_checkpoints.folder / "000000000004" / "counters.json").write_text("{}")
    HARM[harm](many_checkpoints.best.path)
    again, logged = prepare_again(many_checkpoints)
    assert len(logged) == 1 and logged[0].endswith("checkpoint 000000000002 has the best evaluation")
    for best in (again.best, BestCheckpoint(many_checkpoints.folder)):
        assert (best.checkpoint.folder.name, best.mean) == ("000000000002", 5.0)


@pytest.mark.parametrize(("means", "expected"), [({4: 7.0, 6: 8.0}, 6), ({4: 7.0, 6: 7.0}, 6), ({4: 7.0, 6: 6.0}, 4)])
def test_a_kill_before_the_best_was_recorded(many_checkpoints, means, expected):
    evaluated(many_checkpoints, {2: 9.0, **means})  # 4 is the best although 2 has a higher mean: it confirmed a goal
    many_checkpoints.best.set_best(many_checkpoints.find("4"), means[4])
    _, logged = prepare_again(many_checkpoints)
    assert int(BestCheckpoint(many_checkpoints.folder).checkpoint.folder.name) == expected
    line = "names checkpoint 000000000004, whose evaluation is not the best; checkpoint 000000000006 has the best"
    assert [line in each for each in logged] == [True] * (expected == 6)


def test_without_metrics_there_is_no_best(checkpoints):
    save(checkpoints, 1)
    checkpoints.best.path.write_text("[]")
    logged = []
    again = CheckpointStore(checkpoints.folder, keep=2)
    again.prepare(None, logged.append)
    assert len(logged) == 1 and logged[0].endswith("no other checkpoint was evaluated")
    assert again.best.checkpoint is None and not again.best.path.exists()


def test_a_best_checkpoint_that_was_renamed_is_reported_as_missing(many_checkpoints):
    evaluated(many_checkpoints, {1: 3.0, 2: 5.0})
    (many_checkpoints.folder / "000000000002" / "counters.json").write_text("{}")
    again, logged = prepare_again(many_checkpoints)
    assert logged == [
        f"{again.best.path} names checkpoint 000000000002, which is no longer there; "
        "checkpoint 000000000001 has the best evaluation"
    ]


def test_a_checkpoint_in_memory_outlasts_its_folder_and_one_that_vanishes_is_looked_for_again(checkpoints, monkeypatch):
    save(checkpoints, 1, 2)
    folder, hold, held = RunFolder(checkpoints.folder.parent), Checkpoint.hold, []

    def hold_after_a_save(checkpoint):
        held.append(int(checkpoint.folder.name))
        if len(held) < 3:
            save(checkpoints, 10 * len(held), 10 * len(held) + 1)  # which removes all earlier ones
        return hold(checkpoint)

    monkeypatch.setattr(Checkpoint, "hold", hold_after_a_save)
    checkpoint = folder.read_checkpoint(None)
    assert held == [2, 11, 21] and checkpoint.counters.env_steps == 21
    shutil.rmtree(checkpoints.folder)
    assert (checkpoint.counters.env_steps, checkpoint.roles) == (21, [])
