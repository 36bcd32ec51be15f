"""Populations for tests: a task of few steps, members in this process, and training without an agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from algorithm.api import run_training
from algorithm.config.yaml_layers import merge
from algorithm.errors import summarize_error
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import load_blueprint
from algorithm.population.members import MemberFailed, Members
from algorithm.population.runner import create_population, resume_population, train_population
from algorithm.runs.lineage import LineageRow
from algorithm.runs.run_requests import RunRequest, plan_runs
from algorithm.training.progress import Counters

CONFIG = """
default:
  base_config: {env_type: PROBE, suggest_settings: false, env_name: chain,
    max_step: 180, log_every: 60, save_every: null, n_envs: 3}
  replay_config: {capacity: 150}
  acer_config: {rollout_length: 5, sequence_length: 5, learning_starts: 30, batch_size: 4}
  population_config: {interval: 60, random_params: {acer_config.learning_rate: {truncated: [0.0001, 0.01]}}}
"""
RATE = "acer_config.learning_rate"
DRAWS = {"evolver_enabled": True, "evolver_cem_length": 1, "evolver_cem_min_length": 1, "random_params": {}}


def train_quickly(environment, folder, settings, variant, callbacks, log, pause_at):
    """Train like `run_training`, a run whose state is one number, which depends on its history and its settings."""
    load_blueprint(folder.nn_from, settings.base.nn, {})
    store = folder.checkpoints(settings.base.keep_checkpoints)
    newest = store.latest(log)
    state = json.loads((newest.folder / "counters.json").read_text())["state"] if newest else 0
    state = (state * 31 + settings.base.seed + int(1e9 * settings.agent.learning_rate)) % 10007
    with store.create(pause_at) as manifest, manifest.open_file("counters.json") as file:
        file.write(json.dumps({"counters": {"env_steps": pause_at}, "state": state}).encode())
    log(f"state {state}")
    (folder.path / "metrics.csv").write_text(f"env_steps\n{pause_at}\n")
    reached = settings.goal is not None and settings.goal.return_ is not None and state >= settings.goal.return_
    counters = Counters(env_steps=pause_at)
    return SimpleNamespace(returns={"agent": float(state)}, evaluation=None, counters=counters, goal_reached=reached)


class InThisProcess:
    """A fleet that trains members one after the other in this process."""

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


def list_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, by their paths in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_state(name: str) -> dict[str, bytes]:
    """Return the files in the newest checkpoints of the four members of a population."""
    folders = [RunFolder.find("mine/task", f"{name}-{member}").find_latest().folder for member in range(1, 5)]
    return {
        f"{number}/{path}": content
        for number, folder in enumerate(folders)
        for path, content in list_files(folder).items()
    }


def make_request(name: str = "pop", **layer) -> RunRequest:
    tree = merge({"base_config": {"name": name}, "population_config": {"size": 4}}, layer)
    return RunRequest(env="mine/task", layers=[("settings", tree)])


def train_with(make_fleet, variant, folder, settings, train=run_training) -> Sequence[LineageRow]:
    """Train a population with the fleet that a function returns."""
    with patch("algorithm.population.runner.MemberFleet", make_fleet):
        return train_population(folder, settings, partial(train, "mine/task", variant=variant, callbacks=[]), print)


def train_new(name: str = "pop", train=run_training, make_fleet=InThisProcess, **layer) -> Sequence[LineageRow]:
    """Train a new population with further settings; return its lineage."""
    request = make_request(name, **layer)
    ((run_name, settings),) = plan_runs(request)
    with create_population(request, run_name, settings) as folder:
        return train_with(make_fleet, "default", folder, settings, train)


def resume(name: str = "pop", train=run_training, make_fleet=InThisProcess, **layer) -> Sequence[LineageRow]:
    request = RunRequest(env="mine/task", name=name, layers=[("settings", layer)])
    with resume_population(request, name, print) as (folder, settings):
        return train_with(make_fleet, None, folder, settings, train)
