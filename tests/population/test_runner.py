"""Populations of runs: their folders, the checkpoints that members exchange, members that die, and resuming."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from algorithm.api import train as train_by_api
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.store import CheckpointStore, copy_checkpoint
from algorithm.cli import main
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.population.runner import create_population
from algorithm.runs.run_requests import find_population, plan_runs
from algorithm.training.evaluator import EpisodePlan, EvaluationResult, Outcome
from tests.population.members import (
    CONFIG,
    DRAWS,
    RATE,
    InThisProcess,
    list_files,
    make_request,
    resume,
    train_new,
    train_quickly,
    train_with,
)
from tests.task_folder import NN, write_task


@pytest.fixture(autouse=True)
def task() -> Path:
    """Create the folder mine/task."""
    return write_task(CONFIG)


def read_weights(member: str) -> torch.Tensor:
    """Return the weights in the newest checkpoint of a member."""
    checkpoint = RunFolder.find("mine/task", member).find_latest()
    return torch.cat(list(checkpoint.weights("agent")["parameters"].values()))


def read_learner(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint.folder / "agent" / "learner.pt", weights_only=True)


def test_members_are_runs_with_their_own_seed_and_settings():
    with pytest.raises(UserError, match="there is no run"):
        find_population("mine/task", None)
    rows = train_new(base_config={"max_step": 60})
    assert [row.member for row in rows] == [1, 2, 3, 4] and len({row.settings[RATE] for row in rows}) == 4
    for row in rows:
        settings = RunFolder.find("mine/task", f"pop-{row.member}").load_settings()
        assert settings.base.seed == row.member - 1 and settings.agent.learning_rate == row.settings[RATE]
        assert settings.population.size is None  # a run that can be resumed and played without the population
        assert 60 <= row.env_steps <= 62 and 0.0001 <= row.settings[RATE] <= 0.01
    assert find_population("mine/task", "pop") == find_population("mine/task", None) == "pop"
    assert find_population("mine/task", "pop-1") is None


def test_a_member_copies_the_whole_checkpoint_of_its_parent(monkeypatch):
    copies = []

    def copy(source, store, weights=None):
        before = list_files(source.folder)
        copies.append((source.folder.parts[-3], store.folder.parts[-2]))
        copied = copy_checkpoint(source, store, weights)
        assert list_files(copied.folder) == before == list_files(source.folder)
        copied.check()
        return copied

    monkeypatch.setattr("algorithm.population.exchange.copy_checkpoint", copy)
    rows = train_new(base_config={"max_step": 120})
    assert copies == [(f"pop-{row.parent}", f"pop-{row.member}") for row in rows[4:] if row.parent != row.member]
    assert len(copies) == 1


def test_a_pause_changes_nothing():
    """Members without exchange equal runs that are not interrupted, bit for bit."""
    Path("envs/mine/task/config.yaml").write_text(CONFIG[: CONFIG.index("  population_config")])
    config = {"exchange_fraction": 0, "interval": 60, "size": 2}
    train_new(base_config={"evaluate_every": 60}, population_config=config)
    train_by_api("mine/task", name="single", settings={"base_config": {"evaluate_every": 60, "seed": 1}})
    folders = [RunFolder.find("mine/task", name).find_latest().folder for name in ("pop-2", "single")]
    member, single = map(list_files, folders)
    assert folders[0].name == folders[1].name and member.keys() == single.keys()
    assert all(member[name] == single[name] for name in member if name.endswith((".pt", ".npz")))


def test_a_member_that_confirmed_the_goal_ends_the_population_whatever_it_reports(monkeypatch):
    def play(plan, evaluator):
        confirmation = {"agent": EvaluationResult([0.0], [1])} if plan.confirmation_episodes else None
        return Outcome(results={"agent": EvaluationResult([-10.0], [1])}, confirmation=confirmation)

    monkeypatch.setattr(EpisodePlan, "play", play)
    rows = train_new(goal={"return": -1.0}, population_config={"size": 2})
    assert [row.goal_reached for row in rows] == [False] * (len(rows) - 1) + [True] and rows[-1].mean_return == -10
    assert [(row.interval, row.env_steps) for row in resume()] == [(row.interval, row.env_steps) for row in rows]
    monkeypatch.setattr(EpisodePlan, "play", lambda *_: Outcome(results={"agent": EvaluationResult([-10.0], [1])}))
    assert resume(goal={"return": 1000.0})[-1].env_steps >= 180  # a higher goal, which it has not reached


class TestDraws:
    """The cross-entropy method on checkpoints."""

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

        monkeypatch.setattr("algorithm.population.exchange.copy_checkpoint", copy)
        rows = train_new(base_config={"max_step": 120}, population_config={"size": 3, **DRAWS})
        assert len(seen) == 3 and len({tuple(vector.tolist()) for vector in seen}) == 3
        assert [row.parent for row in rows[3:]] == [1, 2, 3]
        assert all(row.mean_return is not None for row in rows)

    def test_an_interrupted_draw_is_repeated_with_the_same_weights(self, monkeypatch):
        layers = {"base_config": {"max_step": 120}, "population_config": {"size": 2, **DRAWS}}
        train_new("whole", **layers)
        calls = []

        def copy(source, store, weights=None):
            calls.append(store)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return copy_checkpoint(source, store, weights)

        monkeypatch.setattr("algorithm.population.exchange.copy_checkpoint", copy)
        with pytest.raises(KeyboardInterrupt):
            train_new("part", **layers)
        resume("part")
        for member in (1, 2):
            assert read_weights(f"whole-{member}").equal(read_weights(f"part-{member}"))

    def test_the_returns_since_the_last_draw_are_restored(self):
        config = {"size": 2, **DRAWS, "evolver_cem_length": 5}
        train_new(train=train_quickly, base_config={"max_step": 120}, population_config=config)
        resume(train=train_quickly, base_config={"max_step": 180})
        state = json.loads(Path("runs/mine/task/pop/population.json").read_text())
        assert [len(returns) for returns in state["exchange"]["returns"]] == [2, 2]

    def test_target_networks_become_copies(self):
        config = {"size": 2, **DRAWS}
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


SET = "--population 2 --set population_config."
REFUSED = {
    f"{SET}random_params.acer_config.learning_rat={{}}": "members cannot have different values of acer_config.",
    "--set population_config.size=1": "it must be from 2 to 1,024",
    f"{SET}interval=0": "it must be at least 1",
    f"{SET}exchange_fraction=0.6": "it must be from 0 to 0.5",
    f"{SET}perturb_factors=[]": "it must have at least one factor",
    f"{SET}perturb_factors=[0]": "population_config.perturb_factors",
    f"{SET}timeout=0": "population_config.timeout is 0.0; it must be above 0",
    f"{SET}evolver_cem_length=3": "is for evolver_enabled true",
    f"{SET}cpus_per_member=2": "population_config.cpus_per_member is for runtime CLUSTER",
    "--population 2 --repeat 2": "--repeat is for single runs",
    "--population 2 --force": "--force is for single runs",
    "--population 2 --max_iter 9": "base_config.max_iter is not for a population",
    "--population 2 --ray local --set cluster_config.actors=2": "cluster_config.actors is for rollout actors, which",
    "--population 2 --ray local --set cluster_config.max_lag=2": "cluster_config.max_lag is for rollout actors, which",
    "--set population_config.processes=2": "--set: population_config has no effect without --population",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_a_population_cannot_use_is_one_line(arguments, capsys):
    refuse(arguments, REFUSED[arguments], capsys)
    assert not Path("runs").exists()


def refuse(arguments: str, message: str, capsys) -> None:
    assert main.main(["mine/task", *arguments.split()]) == 2
    shown = capsys.readouterr().err.strip()
    assert message in shown and "\n" not in shown


@pytest.mark.parametrize(
    ("arguments", "user"),
    [
        ("--ray local", "base_config.runtime CLUSTER"),
        ("--population 2", "a population"),
        ("--population 2 --ray auto", "a population"),
    ],
)
def test_a_run_in_the_editor_has_one_process(task, arguments, user, capsys):
    (task / "config.yaml").write_text("default: {base_config: {env_type: UNITY, n_envs: 1}}\n")
    message = f"{user} opens environments in several processes, but there is one Unity editor"
    refuse(f"--editor {arguments}", message, capsys)
    assert not Path("runs").exists()


@pytest.mark.parametrize("arguments", ["--population 2", "--repeat 2 --jobs 2"])
@pytest.mark.parametrize("setting", ["base_port=5005", "log_folder=logs"])
def test_programs_of_several_runs_have_neither_the_same_port_nor_the_same_files(task, arguments, setting, capsys):
    (task / "config.yaml").write_text(
        f"default: {{base_config: {{env_type: UNITY, unity_args: {{build_path: a, {setting.replace('=', ': ')}}}}}}}\n"
    )
    name, _, _ = setting.partition("=")
    refuse(arguments, f"trains several runs, whose programs would all have base_config.unity_args.{name}", capsys)
    assert not Path("runs").exists()


def test_a_resumed_population_keeps_its_code_and_its_spaces(capsys):
    train_new(train=train_quickly, base_config={"max_step": 60})
    capsys.readouterr()
    for arguments, message in (
        ("--use_env_nn", "--use-env-nn is for single runs"),
        ("--set population_config.size=8", "population_config.size: 4 -> 8 is not possible with --resume"),
        ("--set population_config.interval=8", "population_config.interval: 60 -> 8 is not possible with --resume"),
    ):
        refuse(f"-n pop --resume {arguments}", message, capsys)


def test_a_link_in_the_folder_of_a_member_is_not_followed(capsys, tmp_path):
    train_new(train=train_quickly, base_config={"max_step": 60})
    checkpoints = Path("runs/mine/task/pop-2/checkpoints")
    checkpoints.rename(tmp_path / "elsewhere")
    checkpoints.symlink_to(tmp_path / "elsewhere")
    capsys.readouterr()
    refuse("-n pop --resume", "pop-2/checkpoints is a link to", capsys)


def test_names_that_are_taken(capsys):
    folders = [Path("runs/mine/task", name) for name in ("pop", "pop-1")]
    for folder in folders:
        folder.mkdir(parents=True)
        refuse("--population 2 -n pop", f"run {folder} exists already", capsys)
        folder.rmdir()


def test_a_population_that_learned_nothing_leaves_no_folder(task, capsys):
    (task / "nn.py").write_text("raise ValueError('no network')\n")
    request = make_request()
    ((name, settings),) = plan_runs(request)
    with pytest.raises(UserError, match=r"no network"), create_population(request, name, settings) as folder:
        train_with(InThisProcess, "default", folder, settings)
    assert not Path("runs").exists() or not list(Path("runs").rglob("*"))


def test_a_population_of_a_program():
    with pytest.raises(UserError, match="population_config.size is for the command line"):
        train_by_api("mine/task", settings={"population_config.size": 2})
