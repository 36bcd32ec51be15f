"""Runs with several learners: the second one in a process of its own, the actors in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from algorithm.checkpointing.checkpoint import Manifest, PackedFile, compute_digest, make_prefix
from algorithm.config.loader import check_effects, resolve
from algorithm.errors import LearnerUnreachable, UserError
from algorithm.processes import cluster, learners
from algorithm.processes.averaging_learner import close_on_error
from algorithm.processes.fleet import list_learner_notes
from algorithm.processes.host import ProcessHost
from algorithm.processes.services import pack_weights
from algorithm.runs import build
from algorithm.training.metrics import read_table
from tests.checkpointing.test_resume import SETTINGS, content, new_run
from tests.processes.inline_host import fail_once
from tests.processes.test_cluster_runtime import CHAIN, KINDS, on_ray, read_weights, train

pytestmark = pytest.mark.timeout(120)


def pack_learner(learner) -> np.ndarray:
    """Return all tensors that several learners share, as bytes."""
    moments = [optimizer.moments.numpy() for optimizer in learner.optimizers]
    arrays = [*pack_weights(learner, with_targets=True).values(), learner._counts, *moments]
    return np.concatenate([array.ravel().view(np.uint8) for array in arrays])


class VisibleLearner(learners.LearnerService):
    """A learner that also saves what all learners share, in a file `shared` of each role."""

    def save(self):
        files, metadata = super().save()
        shared = {}
        for name, components in self._training.by_role.items():
            content = pack_learner(components.learner)
            shared[f"{make_prefix(self.rank)}{name}/shared"] = PackedFile(content, compute_digest(content))
        return {**files, **shared}, metadata


class LearnersHost(ProcessHost):
    """A host of learners, which records the called methods."""

    def __init__(self):
        super().__init__()
        self.methods: list[str] = []

    def call(self, handle, method, *arguments):
        self.methods.append(method)
        return super().call(handle, method, *arguments)


@pytest.fixture
def hosts(hosts, prepared_workers, monkeypatch):
    """Let runs on a cluster use actors in this process and learners in others. Return the hosts of the learners."""
    made, start = [], learners.LearnerPeers

    def start_peers(host, task):
        made.append(LearnersHost())
        return start(made[-1], task)

    monkeypatch.setattr(cluster, "LearnerPeers", start_peers)
    monkeypatch.setattr(learners, "LearnerService", VisibleLearner)
    yield made
    for host in made:
        host.close()


@pytest.fixture
def shared(monkeypatch):
    """Return a list that receives what the learners of this process share, at each checkpoint."""
    found, write_all = [], learners.LearnerPeers.save

    def save(self, training, actor, manifest):
        found.append({role: pack_learner(components.learner) for role, components in training.by_role.items()})
        return write_all(self, training, actor, manifest)

    monkeypatch.setattr(learners.LearnerPeers, "save", save)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_learners_of_every_agent_stay_equal_bit_for_bit(kind, hosts, shared, tmp_path):
    folder = new_run(tmp_path, "run", kind, runtime="RAY", max_step=200)
    settings = folder.load_settings(("test", {"cluster_config": {"actors": 2, "learners": 2}}))
    build.train(settings, folder, lambda line: None)
    last = folder.find_latest()
    assert last.counters.updates > 5
    other = np.fromfile(last.folder / "worker-1" / "agent" / "shared", np.uint8)
    np.testing.assert_array_equal(other, shared[-1]["agent"])
    assert hosts[0].methods.count("learn") > 3
    rows = [row for row in read_table(folder.path / "metrics.csv").rows if row["cluster/learner_0_waiting"]]
    for rank in range(2):
        assert 0 < float(rows[-1][f"cluster/learner_{rank}_waiting"]) < 1
        assert float(rows[-1][f"cluster/learner_{rank}_updates_per_second"]) > 0


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_two_learners_equal_one_with_the_whole_batch(algorithm, hosts):
    """One learner joins the rollouts of both actors; otherwise each learner has those of one."""
    layers = SETTINGS, CHAIN, {"base_config": {"algorithm": algorithm}, "ppo_config": {"minibatches": 1}}
    vectors, updates = [], []
    for count in (1, 2):
        cluster_settings = on_ray(actors=2, learners=count, max_lag=0)
        run = train(f"learners_{count}", *layers, cluster_settings)
        vectors.append(torch.cat(list(read_weights(run.folder).values())))
        updates.append(run.result.counters.updates)
    assert updates[0] == updates[1] > 3
    torch.testing.assert_close(vectors[1], vectors[0], rtol=0, atol=1e-5)


RESUMED = ["gru, last action and episodic bonus", "a2c, hybrid and recurrent"]


def resume(folder, max_step, learners, **cluster_settings):
    """Continue a run. Return the logged lines."""
    cluster_config = {"actors": 4, "learners": learners, **cluster_settings}
    tree = {"base_config": {"max_step": max_step}, "cluster_config": cluster_config, "replay_config": {"capacity": 400}}
    settings = folder.load_settings(("test", tree))
    lines = []
    build.train(settings, folder, lines.append)
    return lines


def new_run_of_two(tmp_path, kind):
    folder = new_run(tmp_path, "run", kind, runtime="RAY", max_step=300)
    resume(folder, 300, 2)
    return folder


@pytest.mark.parametrize("kind", RESUMED)
def test_the_state_of_every_learner_is_restored(kind, hosts, tmp_path, monkeypatch):
    folder = new_run_of_two(tmp_path, kind)
    last, states, packed = folder.find_latest(), [], []

    def save_again(self, monitor, divergence):
        manifest = Manifest(tmp_path / "again")
        states.append((manifest, self.save(manifest)))
        packed.append(pack_learner(self.training.get("agent").learner))

    with monkeypatch.context() as patch:
        patch.setattr(cluster.ClusterFleet, "run", save_again)
        assert not any("->" in line for line in resume(folder, 400, 2))
    (manifest, metadata), expected = states[0], content(last)
    assert json.loads(json.dumps(metadata)) == {name: expected["about"][name] for name in metadata}
    manifest.digests = dict(manifest.digests)
    counters = {"counters": {"seconds": 0, "cpu_seconds": 0}}
    (manifest.folder / "counters.json").write_text(json.dumps(expected["about"] | counters))
    again = content(type(last)(manifest.folder))
    assert again.keys() == expected.keys()
    assert any(name.startswith("worker-1/") for name in again)
    rows = "agent/learner.pt/seen"  # with those of rollouts that were not learned from, which are dropped
    assert expected[rows] < again[rows] == last.counters.env_steps
    for name in again.keys() - {"about", rows}:
        np.testing.assert_array_equal(again[name], expected[name], name)
    np.testing.assert_array_equal(np.fromfile(manifest.folder / "worker-1/agent/shared", np.uint8), packed[0])
    resume(folder, 400, 2)
    assert folder.find_latest().counters.env_steps >= 400


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_continues_with_another_number_of_learners(kind, hosts, shared, tmp_path):
    folder = new_run_of_two(tmp_path, kind)
    assert folder.find_latest().lanes("agent") == (6, 6)
    kept = "networks, optimizers, counters and saved experience are kept, but"
    assert f"learners: 2 -> 1; {kept} that of learner 1 is not used" in resume(folder, 400, 1)
    assert folder.find_latest().lanes("agent") == (12, 6)
    assert not (folder.find_latest().folder / "worker-1").exists()
    assert f"learners: 1 -> 2; {kept} there is none for learner 1" in resume(folder, 500, 2)
    last = folder.find_latest()
    assert last.counters.env_steps >= 500
    np.testing.assert_array_equal(np.fromfile(last.folder / "worker-1/agent/shared", np.uint8), shared[-1]["agent"])
    assert not any("->" in line for line in resume(folder, 600, 2, actors=8))
    assert folder.find_latest().lanes("agent") == (12, 6)
    assert type(last)(folder.find_latest().folder, 1).lanes("agent") == (12, 6)


def test_the_number_of_learners_is_described():
    checkpoint, settings = type("Saved", (), {"n_learners": 2})(), resolve([("test", on_ray(actors=4, learners=4))])
    (line,) = list_learner_notes(settings, None)
    assert line == "learners: 4, each with 1/4 of the actors, batch_size, learning_starts and capacity"
    _, change = list_learner_notes(settings, checkpoint)
    assert change.endswith("but there is none for learners 2 to 3")
    assert not list(list_learner_notes(resolve([]), None))


def test_a_lost_learner_ends_the_run_which_resumes(hosts, tmp_path, monkeypatch):
    folder = new_run(tmp_path, "run", "a2c, hybrid and recurrent", runtime="RAY", max_step=400, save_every=100)
    call = LearnersHost.call

    def kill_and_call(self, handle, method, *arguments):
        if method == "learn" and self.methods.count("learn") == 5:
            handle.process.kill()
        return call(self, handle, method, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LearnersHost, "call", kill_and_call)
        message = r"^learner 1 crashed with signal SIGKILL; resume from the last checkpoint$"
        with pytest.raises(LearnerUnreachable, match=message):
            resume(folder, 400, 2)
    saved = folder.find_latest().counters
    assert saved.updates <= 5
    resume(folder, 400, 2)
    assert folder.find_latest().counters.env_steps >= 400


class FailingLearner(VisibleLearner):
    """A learner that raises an exception in its fourth round."""

    rounds = 0

    def learn(self, *arguments):
        self.rounds += 1
        if self.rounds == 4:
            with close_on_error():
                return 1 // 0
        return super().learn(*arguments)


def test_the_exception_of_a_learner_ends_the_run(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(learners, "LearnerService", FailingLearner)
    folder = new_run(tmp_path, "run", "a2c, hybrid and recurrent", runtime="RAY", save_every=None, evaluate_every=None)
    with pytest.raises(LearnerUnreachable, match="learner 1 ended .ZeroDivisionError: .*; resume from") as raised:
        resume(folder, 400, 2)
    assert "1 // 0" in str(raised.value.__cause__)
    assert not (folder.path / "checkpoints").exists()


def test_a_run_with_an_exception_in_the_main_process_is_saved(hosts, tmp_path, monkeypatch):
    folder = new_run(tmp_path, "run", "a2c, hybrid and recurrent", runtime="RAY", save_every=None)
    original = build.DivergenceDetector.count_update

    def fail(self):
        original(self)
        if self._updates == 4:
            raise ZeroDivisionError("in a callback")

    monkeypatch.setattr(build.DivergenceDetector, "count_update", fail)
    with pytest.raises(ZeroDivisionError):
        resume(folder, 400, 2)
    last = folder.find_latest()
    assert type(last)(last.folder, 1).has_experience


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(rank, hosts, tmp_path, monkeypatch):
    folder = new_run(tmp_path, "run", "a2c, hybrid and recurrent", runtime="RAY", save_every=100)
    if rank:
        monkeypatch.setattr(learners, "LearnerService", LearnerWithFullDisk)
    else:
        monkeypatch.setattr(learners, "write_all", fail_once(learners.write_all))
    lines = resume(folder, 400, 2)
    assert any("cannot be written" in line and "the next save tries again" in line for line in lines)
    assert folder.find_latest().counters.env_steps >= 400


class LearnerWithFullDisk(VisibleLearner):
    """A learner that cannot write its first checkpoint."""

    def save(self):
        learners.write_experience = fail_once(learners.write_experience)
        self.save = super().save
        return learners.LearnerService.save(self)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"cluster_config": {"learners": 2}}, "is for runtime CLUSTER"),
        (on_ray(learners=1, cpus_per_learner=2.0), "since learners is 1"),
        ({"base_config": {"n_workers": 3}}, "base_config.n_workers is for runtime WORKERS, not for LOCAL"),
    ],
)
def test_settings_of_processes_that_a_run_does_not_have(layer, reason):
    with pytest.raises(UserError, match=reason):
        check_effects(resolve([("test", layer)]), [("test", layer)])
