"""Statistics of observations and of batch norms from training to a checkpoint, and to --resume, --run and `load`."""

from __future__ import annotations

import numpy as np
import torch

from algorithm import load
from algorithm.agents.agent import Agent
from algorithm.cli import main
from algorithm.networks.flat_parameters import State
from algorithm.networks.normalization import find_batch_norms
from algorithm.parts.run_folder import RunFolder
from algorithm.training.evaluator import Evaluator
from tests.task_folder import write_task

CONFIG = """
default:
  base_config: {{env_name: {env_name}, max_step_each_iter: 90, n_envs: 2, max_step: 400, evaluate_every: 200}}
  acer_config: {{rollout_length: 10, sequence_length: 10, batch_size: 4, learning_starts: 40}}
"""
NN = """
from algorithm.networks import Blueprint, Mlp, Residual, Vector
blueprint = Blueprint(encoders={{"*": Vector({settings})}}, body={body})
"""


def write(settings: str, env_name: str = "Pendulum-v1", body: str = "Mlp(8)") -> None:
    folder = write_task(CONFIG.format(env_name=env_name))
    (folder / "nn.py").write_text(NN.format(settings=settings, body=body))


def train_and_play(size: int, monkeypatch) -> tuple[State, list[Agent]]:
    """Return the best weights of a run, the agent that `--run` plays, and the one of `load` after it has acted."""
    agents, play = [], Evaluator.play

    def watched(self, *arguments):
        played = play(self, *arguments)
        agents.append(self.get_agent("agent"))
        return played

    assert main.main("mine/task -n a".split()) == 0
    monkeypatch.setattr(Evaluator, "play", watched)
    assert main.main("mine/task -n a --run".split()) == 0
    player = load("runs/mine/task/a")
    player.act(np.full((3, size), 2.0))
    assert len(agents) == 1
    return RunFolder.find("mine/task", "a").find_best().weights("agent"), [*agents, player.agent]


def test_a_loaded_agent_has_the_statistics_and_playing_does_not_change_them(monkeypatch):
    write("normalize=True")
    saved, agents = train_and_play(3, monkeypatch)
    for agent in agents:
        for network in (agent.policy, agent.average_policy.network):
            kept = torch.cat([buffer.ravel() for buffer in network.buffers()])
            assert kept.equal(saved["statistics"]["obs/acer"])


def test_a_loaded_agent_has_the_statistics_of_batches_and_playing_does_not_change_them(monkeypatch):
    write("", "CartPole-v1", body="Residual(6, 1, norm='batch_renorm', unit_weights=True)")
    saved, agents = train_and_play(4, monkeypatch)
    assert set(saved["batch_statistics"]) == {"acer", "target/average"}
    for agent in agents:
        for name, network in (("acer", agent.policy), ("target/average", agent.average_policy.network)):
            norms = find_batch_norms([network])
            assert torch.cat([norm.running for norm in norms]).equal(saved["batch_statistics"][name])
            assert {float(norm.running[-1]) for norm in norms} == {float(norms[0].running[-1])}
    assert agents[-1].policy.torso.body.input_norm.running[-1] > 5  # committed batches
