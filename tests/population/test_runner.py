"""Populations of runs: their folders, the checkpoints that members exchange, members that die, and resuming."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from algorithm.api import run_training
from algorithm.api import train as train_by_api
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.store import CheckpointStore
from algorithm.checkpointing.writer import copy_checkpoint
from algorithm.cli import main
from algorithm.config.yaml_layers import merge
from algorithm.errors import UserError, summarize_error
from algorithm.parts.run_folder import RunFolder
from algorithm.population.folder import LineageRow
from algorithm.population.member import MemberFailed, Members
from algorithm.population.runner import create_population, resume_population, train_population
from algorithm.runs.faults import describe_end
from algorithm.runs.run_requests import RunRequest, find_population, plan_runs
from algorithm.training.evaluator import EpisodePlan, EvaluationResult, Outcome
from tests.task_folder import NN, write_task

CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: chain, max_step: 180, log_every: 60, save_every: null, n_envs: 3}
  replay_config: {capacity: 150}
  acer_config: {rollout_length: 5, sequence_length: 5, learning_starts: 30, batch_size: 4}
  population_config: {interval: 60, random_params: {acer_config.learning_rate: {truncated: [0.0001, 0.01]}}}
"""
RATE = "acer_config.learning_rate"


@pytest.fixture(autouse=True)
def task() -> Path:
    """Create the folder mine/task."""
    return write_task(CONFIG)


class InThisProcess:
    """A runner that trains members one after the other in this process."""

    def __init__(self, members: Members, settings, log):
        self.members = members

    def train(self, tasks):
        for task in tasks:
            try:
                yield task, self.members.run_task(task)
            except RuntimeError as error:
                yield task, MemberFailed(summarize_error(error))

    def close(self) -> None:
        pass


def make_request(name: str = "pop", **layer) -> RunRequest:
    tree = merge({"base_config": {"name": name}, "population_config": {"size": 4}}, layer)
    return RunRequest(env="mine/task", layers=[("settings", tree)])


def train_new(name: str = "pop", train=run_training, make_runner=InThisProcess, **layer) -> list[LineageRow]:
    """Train a new population with further settings; return its lineage."""
    request = make_request(name, **layer)
    ((run_name, settings),) = plan_runs(request)
    with create_population(request, run_name, settings) as folder:
        return train_population("mine/task", "default", folder, settings, train, print, make_runner)


def resume(name: str = "pop", **layer) -> list[LineageRow]:
    request = RunRequest(env="mine/task", name=name, layers=[("settings", layer)])
    with resume_population(request, name, print) as (folder, settings):
        return train_population("mine/task", None, folder, settings, run_training, print, InThisProcess)


def read_weights(member: str, env_steps: int | None = None) -> torch.Tensor:
    """Return the weights in the checkpoint of a member, by default in the newest one."""
    folder = RunFolder.find("mine/task", member)
    checkpoint = folder.find_checkpoint(str(env_steps), print) if env_steps else folder.find_latest()
    return torch.cat(list(checkpoint.weights("agent")["parameters"].values()))


def read_learner(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint.folder / "agent" / "learner.pt", weights_only=True)


def list_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_members_are_runs_with_their_own_seed_and_settings():
    rows = train_new(base_config={"max_step": 60})
    assert [row.member for row in rows] == [1, 2, 3, 4] and len({row.settings[RATE] for row in rows}) == 4
    for row in rows:
        settings = RunFolder.find("mine/task", f"pop-{row.member}").load_settings()
        assert settings.base.seed == row.member - 1 and settings.agent.learning_rate == row.settings[RATE]
        assert settings.population.size is None  # a run that can be resumed and played without the population
        assert 60 <= row.env_steps <= 62 and 0.0001 <= row.settings[RATE] <= 0.01


def test_a_member_copies_the_whole_checkpoint_of_its_parent(monkeypatch):
    copies = []

    def copy(source, store, weights=None):
        before = list_files(source.folder)
        copies.append((source.folder.parts[-3], store.folder.parts[-2]))
        copied = copy_checkpoint(source, store, weights)
        assert list_files(copied.folder) == before == list_files(source.folder)
        copied.check()
        return copied

    monkeypatch.setattr("algorithm.population.member_checkpoints.copy_checkpoint", copy)
    rows = train_new(base_config={"max_step": 120})
    assert copies == [(f"pop-{row.parent}", f"pop-{row.member}") for row in rows[4:] if row.parent != row.member]
    assert len(copies) == 1


def test_a_pause_changes_nothing():
    """Members without exchange equal runs that are not interrupted, bit for bit."""
    Path("envs/mine/task/config.yaml").write_text(CONFIG[: CONFIG.index("  population_config")])
    config = {"exchange_fraction": 0, "interval": 60, "size": 3}
    train_new(base_config={"evaluate_every": 60}, population_config=config)
    train_by_api("mine/task", name="single", settings={"base_config": {"evaluate_every": 60, "seed": 2}})
    folders = [RunFolder.find("mine/task", name).find_latest().folder for name in ("pop-3", "single")]
    member, single = map(list_files, folders)
    assert folders[0].name == folders[1].name and member.keys() == single.keys()
    assert all(member[name] == single[name] for name in member if name.endswith((".pt", ".npz")))


def test_a_resumed_population_equals_an_uninterrupted_one():
    expected = train_new("whole")
    train_new("part", base_config={"max_step": 60})
    rows = resume("part", base_config={"max_step": 180})
    assert rows == expected
    for member in range(1, 5):
        torch.testing.assert_close(read_weights(f"whole-{member}"), read_weights(f"part-{member}"), rtol=0, atol=0)


def test_a_member_that_fails_is_replaced_by_a_copy():
    def fail(environment, folder, *args):
        if folder.path.name == "pop-2":
            raise RuntimeError("broken")
        return run_training(environment, folder, *args)

    rows = train_new(train=fail, base_config={"max_step": 120}, population_config={"max_restarts": 0})
    of_second = [row for row in rows if row.member == 2]
    assert [row.mean_return for row in of_second] == [None, None] and of_second[1].parent != 2
    parent = of_second[1].parent
    copied = next(row.env_steps for row in rows if row.member == parent)
    assert read_weights("pop-2", copied).equal(read_weights(f"pop-{parent}", copied))


def test_a_member_that_confirmed_the_goal_ends_the_population_whatever_it_reports(monkeypatch):
    def play(plan, evaluator):
        confirmation = {"agent": EvaluationResult([0.0], [1])} if plan.confirmation_episodes else None
        return Outcome(results={"agent": EvaluationResult([-10.0], [1])}, confirmation=confirmation)

    monkeypatch.setattr(EpisodePlan, "play", play)
    rows = train_new(goal={"return": -1.0})
    assert [row.goal_reached for row in rows] == [False] * (len(rows) - 1) + [True] and rows[-1].mean_return == -10
    assert [(row.interval, row.env_steps) for row in resume()] == [(row.interval, row.env_steps) for row in rows]
    monkeypatch.setattr(EpisodePlan, "play", lambda *_: Outcome(results={"agent": EvaluationResult([-10.0], [1])}))
    assert resume(goal={"return": 1000.0})[-1].env_steps >= 180  # a higher goal, which it has not reached


def test_the_population_of_a_name():
    with pytest.raises(UserError, match="there is no run"):
        find_population("mine/task", None)
    train_new(base_config={"max_step": 60})
    assert find_population("mine/task", "pop") == find_population("mine/task", None) == "pop"
    assert find_population("mine/task", "pop-1") is None


class TestDraws:
    """The cross-entropy method on checkpoints."""

    CONFIG = {"evolver_enabled": True, "evolver_cem_length": 1, "evolver_cem_min_length": 1, "random_params": {}}

    def test_every_member_gets_its_own_draw(self, monkeypatch):
        seen = []

        def copy(source, store, weights=None):
            assert weights is not None
            noted = torch.cat(list(weights["agent"]["parameters"].values()))
            copied = copy_checkpoint(source, store, weights)
            assert all(not tensor.any() for name, tensor in read_learner(copied).items() if name.startswith("moments/"))
            assert torch.cat(list(copied.weights("agent")["parameters"].values())).equal(noted)
            seen.append(noted)
            return copied

        monkeypatch.setattr("algorithm.population.member_checkpoints.copy_checkpoint", copy)
        rows = train_new(base_config={"max_step": 120}, population_config=self.CONFIG)
        assert len(seen) == 4 and len({tuple(vector.tolist()) for vector in seen}) == 4
        assert [row.parent for row in rows[4:]] == [1, 2, 3, 4]
        assert all(row.mean_return is not None for row in rows)

    def test_an_interrupted_draw_is_repeated_with_the_same_weights(self, monkeypatch):
        train_new("whole", base_config={"max_step": 120}, population_config=self.CONFIG)
        calls = []

        def copy(source, store, weights=None):
            calls.append(store)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return copy_checkpoint(source, store, weights)

        monkeypatch.setattr("algorithm.population.member_checkpoints.copy_checkpoint", copy)
        with pytest.raises(KeyboardInterrupt):
            train_new("part", base_config={"max_step": 120}, population_config=self.CONFIG)
        resume("part")
        for member in range(1, 5):
            assert read_weights(f"whole-{member}").equal(read_weights(f"part-{member}"))

    def test_target_networks_become_copies(self):
        config = merge(self.CONFIG, {"size": 2})
        train_new(base_config={"max_step": 60}, population_config=config)
        source = RunFolder.find("mine/task", "pop-1").find_latest()
        state = {kind: tensors for kind, tensors in source.weights("agent").items() if kind != "target_networks"}
        store = CheckpointStore(RunFolder.find("mine/task", "pop-2").path / "checkpoints", 5)
        copied = copy_checkpoint(source, store, {"agent": state})
        assert "target_networks" not in copied.weights("agent")
        resume(base_config={"max_step": 120})  # the agent is built from this checkpoint
        newest = RunFolder.find("mine/task", "pop-2").find_latest().weights("agent")
        assert newest["target_networks"] and all(tensor.any() for tensor in newest["target_networks"].values())


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals of POSIX")
@pytest.mark.usefixtures("prepared_workers")
class TestProcesses:
    def test_a_member_that_is_killed_continues_from_its_last_checkpoint(self, capfd):
        expected = train_new("whole", population_config={"size": 2}, base_config={"max_step": 120})
        arguments = "mine/task --population 2 -n pop --max_step 120 --set population_config.processes=1 --json"
        Path("kill").touch()
        Path("envs/mine/task/nn.py").write_text(
            "import os\nfrom pathlib import Path\nif Path('kill').exists():\n"
            f"    Path('kill').unlink()\n    os.kill(os.getpid(), {int(signal.SIGKILL)})\n{NN}"
        )
        assert main.main(arguments.split()) == 0
        shown = capfd.readouterr()
        result = json.loads(shown.out.splitlines()[-1])
        assert "member 1: its process crashed with signal SIGKILL: it continues from its last checkpoint" in shown.err
        rows = [json.loads(line) for line in Path(result["lineage"]).read_text().splitlines()]
        returns = {(row["interval"], row["member"]): row["return"] for row in rows}
        assert returns == {(row.interval, row.member): row.mean_return for row in expected}
        assert result["best"]["return"] == max(row.mean_return for row in expected)
        assert main.main(["mine/task", "-n", Path(result["best"]["run"]).name, "--run"]) == 0


BAD = {
    "random_params={acer_config.learning_rat: {}}": "members cannot have different values of acer_config.learning_rat",
    "random_params={acer_config.learning_rate: {in: 3}}": "in is 3; it must be a list of at least two values",
    "random_params={acer_config.learning_rate: {in: [0.1, 0.2], std: 1}}": "truncated and std are for numbers",
    "random_params={acer_config.learning_rate: {truncated: [2, 1]}}": "its first number must be below its second",
    "random_params={acer_config.learning_rate: {truncated: [1]}}": "it must be a list of two numbers",
    "random_params={acer_config.learning_rate: {truncated: [-1.0, 1.0]}}": "it must be above 0",
    "random_params={acer_config.learning_rate: {std: -1}}": "it must be a number above 0",
    "random_params={acer_config.learning_rate: 3}": "it must be a mapping with in, truncated or std",
    "random_params={acer_config.optimizer: {}}": "not a number; give its values with in",
    "random_params={acer_config.optimizer: {in: [adam, sgd]}}": "acer_config.optimizer is 'sgd'",
    "random_params={replay_config.capacity: {in: [100, 200]}}": "the saved replay has this size",
    "random_params={sac_config.gamma: {}}": "is for algorithm SAC, not for ACER",
    "random_params={base_config.seed: {}}": "members cannot have different values of base_config.seed",
    "random_params={population_config.interval: {}}": "members cannot have different values",
    "random_params={base_config.runtime: {in: [LOCAL, RAY]}}": "members cannot have different values of base_config.ru",
    "random_params={cluster_config.timeout: {}}": "members cannot have different values of cluster_config.timeout",
    "random_params={goal.return: {}}": "members cannot have different values",
    "size=1": "it must be from 2 to 1,024",
    "interval=0": "it must be at least 1",
    "exchange_fraction=0.6": "it must be from 0 to 0.5",
    "perturb_factors=[]": "it must have at least one factor",
    "perturb_factors=[0]": "population_config.perturb_factors",
    "evolver_cem_length=3": "is for evolver_enabled true",
}


@pytest.mark.parametrize("assignment", BAD)
def test_a_bad_setting_is_one_line(assignment, capsys):
    assignments = ["population_config.size=2", f"population_config.{assignment}"]
    arguments = ["mine/task", "--set", *assignments]
    assert main.main(arguments) == 2
    shown = capsys.readouterr().err.strip()
    assert BAD[assignment] in shown and "\n" not in shown
    assert not list(Path("runs").rglob("*")) if Path("runs").exists() else True


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--population 2 --repeat 2", "--repeat is for single runs"),
        ("--population 2 --force", "--force is for single runs"),
        ("--population 2 --max_iter 9", "base_config.max_iter is not for a population"),
        ("--set population_config.processes=2", "--set: population_config has no effect without --population"),
    ],
)
def test_options_that_do_not_fit_a_population(arguments, message, capsys):
    assert main.main(["mine/task", *arguments.split()]) == 2
    shown = capsys.readouterr().err.strip()
    assert message in shown and "\n" not in shown


def test_a_resumed_population_keeps_its_code_and_its_spaces(capsys):
    train_new(base_config={"max_step": 60})
    for arguments, message in (
        (["--use_env_nn"], "--use-env-nn is for single runs"),
        (["--set", "population_config.size=8"], "population_config.size: 4 -> 8 is not possible with --resume"),
        (
            ["--set", "population_config.interval=8"],
            "population_config.interval: 60 -> 8 is not possible with --resume",
        ),
    ):
        assert main.main(["mine/task", "-n", "pop", "--resume", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_end_of_a_population_whose_members_fail(capsys):
    def fail(*_):
        raise RuntimeError("broken")

    with pytest.raises(MemberFailed) as failure:
        train_new(train=fail, population_config={"max_restarts": 0})
    assert describe_end(failure.value) == (
        1,
        "all members of the population have failed; the lines above contain the reasons",
    )


def test_names_that_are_taken(capsys):
    train_new(base_config={"max_step": 60})
    assert main.main("mine/task --population 2 -n pop".split()) == 2
    assert "run runs/mine/task/pop exists already" in capsys.readouterr().err
    Path("runs/mine/task/pop").rename("runs/mine/task/other")
    assert main.main("mine/task --population 2 -n pop".split()) == 2
    assert "run runs/mine/task/pop-1 exists already" in capsys.readouterr().err
    assert not Path("runs/mine/task/pop").exists()


def test_a_population_that_learned_nothing_leaves_no_folder(task, capsys):
    (task / "nn.py").write_text("raise ValueError('no network')\n")
    request = make_request()
    ((name, settings),) = plan_runs(request)
    with pytest.raises(UserError, match=r"no network"), create_population(request, name, settings) as folder:
        train_population("mine/task", "default", folder, settings, run_training, print, InThisProcess)
    assert not Path("runs").exists() or not list(Path("runs").rglob("*"))


def test_a_population_of_a_program():
    with pytest.raises(UserError, match="population_config.size is for the command line"):
        train_by_api("mine/task", settings={"population_config.size": 2})
