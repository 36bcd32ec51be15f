"""Tests of the contracts with fakes: each fake trains, is saved, resumes and plays with `--run`."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from algorithm import load
from algorithm.cli import main
from algorithm.config.registry import find_settings
from algorithm.parts.run_folder import RunFolder
from tests.task_folder import write_task

pytestmark = pytest.mark.usefixtures("registered_fakes")

NN = """
from algorithm.networks import Blueprint, Mlp
from tests.fakes import RunningSum
blueprint = Blueprint(body=Mlp(8){memory})
"""
CONFIG = """
default:
  base_config: {{env_type: {adapter}, env_name: choice, algorithm: {agent}, n_envs: 3, max_step: 240, log_every: 80,
    suggest_settings: false}}
  auxiliaries: {auxiliaries}
  explorer: {explorer}
"""
# By algorithm; other agents have no settings. Those without a replay have no `replay_config`.
REPLAYED = "rollout_length: 8, sequence_length: 12, batch_size: 4, learning_starts: 32, replay_ratio: 2"
SECTIONS = {
    "ACER": REPLAYED,
    "SAC": REPLAYED,
    "REACTOR": f"{REPLAYED}, n_atoms: 11",
    "A2C": "rollout_length: 4",
    "PPO": "rollout_length: 8, epochs: 2, minibatches: 1",
}


@dataclass(frozen=True, kw_only=True)
class Fake:
    """The parts of an environment folder that are fakes."""

    adapter: str = "PROBE"
    agent: str = "ACER"
    auxiliaries: str = "{}"
    explorer: str = "{}"
    memory: str = ""

    def train(self) -> RunFolder:
        """Write the folder, and train in it."""
        config = CONFIG.format(**vars(self))
        if self.agent in SECTIONS:
            config += f"  {self.agent.lower()}_config: {{{SECTIONS[self.agent]}}}\n"
        if find_settings("algorithm", self.agent).uses_replay:
            config += "  replay_config: {capacity: 900}\n"
        write_task(config, "fake/task", NN.format(memory=self.memory))
        return run()


CURIOSITY = "{curiosity: {strength: 0.1, units: 8}}"
AGENT_CURIOSITY = "{curiosity: {features: agent, units: 8}, distillation: {weight: 0.5}}"
DISTILLATION = "{distillation: {weight: 0.5}}"
MIXTURE = "{mixture: {epsilon: 0.3}}"
MEMORY, TWO_MEMORIES = ", memory=RunningSum", ", policy=RunningSum, critic=RunningSum"
FAKES = {
    "reactor with two roles": Fake(agent="REACTOR", adapter="TWO_ROLES"),
    "reactor, auxiliary and explorer, recurrent and skipping": Fake(
        agent="REACTOR", adapter="SKIPPING", auxiliaries=DISTILLATION, explorer=MIXTURE, memory=TWO_MEMORIES
    ),
    "auxiliary and explorer without a replay": Fake(agent="A2C", auxiliaries=DISTILLATION, explorer=MIXTURE),
    "epochs and a late role": Fake(agent="PPO", adapter="TWO_ROLES"),
    "epochs and an auxiliary, recurrent and skipping": Fake(
        agent="PPO", adapter="SKIPPING", auxiliaries=DISTILLATION, memory=MEMORY
    ),
    "curiosity and a late role": Fake(adapter="TWO_ROLES", auxiliaries=CURIOSITY),
    "curiosity, recurrent and skipping": Fake(adapter="SKIPPING", auxiliaries=AGENT_CURIOSITY, memory=MEMORY),
    "curiosity, a critic with its own memory": Fake(
        agent="REACTOR", adapter="SKIPPING", auxiliaries=CURIOSITY, memory=TWO_MEMORIES
    ),
    "curiosity and sac": Fake(agent="SAC", auxiliaries=CURIOSITY),
    "curiosity without a replay": Fake(agent="A2C", auxiliaries=CURIOSITY),
    "curiosity, epochs and a memory": Fake(agent="PPO", auxiliaries=CURIOSITY, memory=MEMORY),
    "recurrent and skipping": Fake(adapter="SKIPPING", memory=MEMORY),
    "all": Fake(adapter="TWO_ROLES", agent="TWO_GROUPS", auxiliaries=DISTILLATION, explorer=MIXTURE, memory=MEMORY),
}


def run(*arguments):
    assert main.main(["fake/task", "-n", "a", *arguments]) == 0
    return RunFolder.find("fake/task", "a")


def read_weights(folder):
    checkpoint = folder.find_latest()
    return {role: checkpoint.weights(role) for role in checkpoint.roles}


@pytest.mark.parametrize("fake", FAKES)
def test_every_fake_trains_resumes_and_plays(fake, capsys):
    folder = FAKES[fake].train()
    before, counters = read_weights(folder), folder.find_latest().counters
    assert counters.env_steps >= 240
    assert counters.updates > 10

    run("--run", "--disable_sample")
    assert "return" in capsys.readouterr().out
    for role in before:
        player = load(folder.path, role=role)
        spec = next(iter(player.role.obs_specs.values()))
        assert int(player.act(np.zeros(spec.shape))) in range(player.role.action_spec.branches[0])

    config = folder.path / "config.yaml"
    config.write_text(config.read_text().replace("max_step: 240", "max_step: 320"))
    run("--resume")
    after, later = read_weights(folder), folder.find_latest().counters
    assert later.env_steps >= 320
    assert later.updates > counters.updates
    for role, state in before.items():
        for group, vector in state["parameters"].items():
            assert not torch.equal(vector, after[role]["parameters"][group]), (role, group)


def test_a_memory_stays_with_its_lane_when_ticks_are_skipped():
    folder = FAKES["recurrent and skipping"].train()
    with np.load(folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        heads = arrays["head"]
        assert len(set(heads.tolist())) > 1  # lanes have stored different numbers of rows
        lane = int(heads.argmax())
        obs, first, memory = (arrays[name][lane, : heads[lane]] for name in ("obs/obs", "first", "memory"))
    assert ((obs[:, 0] == 0) == first).all()
    assert (np.diff(obs[:, 0])[~first[1:]] == 1).all()  # no decision of the lane is missing
    inside = [k for k in range(1, len(obs) // 8) if obs[8 * k, 0] >= 2]  # sequences that begin inside an episode
    assert inside
    assert all(np.abs(memory[k]).sum() > 0 for k in inside)
