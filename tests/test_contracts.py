"""Tests of the contracts with fakes: each fake trains, is saved, resumes and plays with `--run`."""

import numpy as np
import pytest
import torch

from algorithm import load
from algorithm.cli import main
from algorithm.config.registry import find_settings
from algorithm.parts.run_folder import RunFolder
from tests.fakes import LATE

pytestmark = pytest.mark.usefixtures("registered_fakes")

NN = """
from algorithm.networks import Blueprint, Mlp
from tests.fakes import RunningSum
blueprint = Blueprint(body=Mlp(8){memory})
"""


CONFIG = """
default:
  base_config: {{env_type: {adapter}, env_name: choice, algorithm: {agent}, n_envs: 3, max_step: 400, log_every: 100}}
{agent_section}  auxiliaries: {auxiliaries}
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

CURIOSITY = "{curiosity: {strength: 0.1, units: 8}}"
FAKES = {
    "two roles": {"adapter": "TWO_ROLES"},
    "two groups": {"agent": "TWO_GROUPS"},
    "auxiliary": {"auxiliaries": "{distillation: {weight: 0.5}}"},
    "explorer": {"explorer": "{mixture: {epsilon: 0.3}}"},
    "reactor with two roles": {"agent": "REACTOR", "adapter": "TWO_ROLES"},
    "reactor, auxiliary and explorer, recurrent and skipping": {
        "agent": "REACTOR",
        "adapter": "SKIPPING",
        "auxiliaries": "{distillation: {weight: 0.5}}",
        "explorer": "{mixture: {epsilon: 0.3}}",
        "memory": ", policy=RunningSum, critic=RunningSum",
    },
    "without a replay": {"agent": "A2C"},
    "auxiliary and explorer without a replay": {
        "agent": "A2C",
        "auxiliaries": "{distillation: {weight: 0.5}}",
        "explorer": "{mixture: {epsilon: 0.3}}",
    },
    "epochs and a late role": {"agent": "PPO", "adapter": "TWO_ROLES"},
    "epochs and an auxiliary, recurrent and skipping": {
        "agent": "PPO",
        "adapter": "SKIPPING",
        "auxiliaries": "{distillation: {weight: 0.5}}",
        "memory": ", memory=RunningSum",
    },
    "curiosity and a late role": {"adapter": "TWO_ROLES", "auxiliaries": CURIOSITY},
    "curiosity, recurrent and skipping": {
        "adapter": "SKIPPING",
        "auxiliaries": "{curiosity: {features: agent, units: 8}, distillation: {weight: 0.5}}",
        "memory": ", memory=RunningSum",
    },
    "curiosity, a critic with its own memory": {
        "agent": "REACTOR",
        "adapter": "SKIPPING",
        "auxiliaries": CURIOSITY,
        "memory": ", policy=RunningSum, critic=RunningSum",
    },
    "curiosity and sac": {"agent": "SAC", "auxiliaries": CURIOSITY},
    "curiosity without a replay": {"agent": "A2C", "auxiliaries": CURIOSITY},
    "curiosity, epochs and a memory": {"agent": "PPO", "auxiliaries": CURIOSITY, "memory": ", memory=RunningSum"},
    "recurrent and skipping": {"adapter": "SKIPPING", "memory": ", memory=RunningSum"},
    "all at once": {
        "adapter": "TWO_ROLES",
        "agent": "TWO_GROUPS",
        "auxiliaries": "{distillation: {weight: 0.5}}",
        "explorer": "{mixture: {epsilon: 0.3}}",
        "memory": ", memory=RunningSum",
    },
}


def write_folder(tmp_path, adapter="PROBE", agent="ACER", auxiliaries="{}", explorer="{}", memory=""):
    folder = tmp_path / "envs" / "fake" / "task"
    folder.mkdir(parents=True)
    section = f"  {agent.lower()}_config: {{{SECTIONS[agent]}}}\n" if agent in SECTIONS else ""
    if find_settings("algorithm", agent).uses_replay:
        section += "  replay_config: {capacity: 900}\n"
    config = CONFIG.format(
        adapter=adapter, agent=agent, agent_section=section, auxiliaries=auxiliaries, explorer=explorer
    )
    (folder / "config.yaml").write_text(config)
    (folder / "nn.py").write_text(NN.format(memory=memory))


def run(*arguments):
    assert main.main(["fake/task", "-n", "a", *arguments]) == 0
    return RunFolder.find("fake/task", "a")


def read_weights(folder):
    checkpoint = folder.find_latest()
    return {role: checkpoint.weights(role) for role in checkpoint.roles}


@pytest.mark.parametrize("fake", FAKES)
def test_every_fake_trains_resumes_and_plays(fake, tmp_path, capsys):
    write_folder(tmp_path, **FAKES[fake])
    folder = run()
    before, counters = read_weights(folder), folder.find_latest().counters
    assert counters.env_steps >= 400
    assert counters.updates > 10

    run("--run", "--disable_sample")
    assert "return" in capsys.readouterr().out
    for role in before:
        player = load(folder.path, role=role)
        spec = next(iter(player.role.obs_specs.values()))
        assert int(player.act(np.zeros(spec.shape))) in range(player.role.action_spec.branches[0])

    config = folder.path / "config.yaml"
    config.write_text(config.read_text().replace("max_step: 400", "max_step: 800"))
    run("--resume")
    after, later = read_weights(folder), folder.find_latest().counters
    assert later.env_steps >= 800
    assert later.updates > counters.updates
    for role, state in before.items():
        for group, vector in state["parameters"].items():
            assert not torch.equal(vector, after[role]["parameters"][group]), (role, group)


def test_a_role_that_appears_late_has_its_own_components(tmp_path):
    write_folder(tmp_path, **FAKES["two roles"])
    folder = run()
    states = read_weights(folder)
    assert set(states) == set(folder.read_roles()) == {"early", "late"}
    assert states["early"]["parameters"]["acer"].shape != states["late"]["parameters"]["acer"].shape
    counters = folder.find_latest().counters
    ticks = counters.env_steps / 4 * 6 / 5  # four lanes in all; five of six rows are executed
    assert ticks > LATE


def test_each_group_uses_its_own_learning_rate(tmp_path, monkeypatch):
    from algorithm.training.learner import Learner

    updates = []
    step = Learner._step_if_finite

    def recorded_step(self):
        before = {name: self.parameters.vector[where].clone() for name, where in self.parameters.group_slices.items()}
        result = step(self)
        updates.append(
            {
                name: (self.parameters.vector[where] - before[name]).abs().max().item()
                for name, where in self.parameters.group_slices.items()
            }
        )
        return result

    monkeypatch.setattr(Learner, "_step_if_finite", recorded_step)
    write_folder(tmp_path, **FAKES["two groups"])
    run()
    assert max(step["policy"] for step in updates) < 3e-3  # a step of Adam is about its learning rate
    assert max(step["critic"] for step in updates) > 1e-2


def test_an_auxiliary_has_parameters_statistics_and_a_target_network(tmp_path):
    write_folder(tmp_path, **FAKES["auxiliary"])
    folder = run()
    state = read_weights(folder)["agent"]
    assert state["parameters"]["auxiliary/distillation"].shape == (8 * 4 + 4,)
    student, teacher = (
        state["parameters"]["auxiliary/distillation"],
        state["target_networks"]["auxiliary/distillation/teacher"],
    )
    assert teacher.shape == student.shape
    assert not torch.equal(teacher, student)
    count = state["statistics"]["auxiliary/distillation"][-1]
    assert count >= 350  # rewards of almost every valid row, each observed once however often it is replayed
    assert count <= 420


def test_the_replay_stores_the_behavior_of_the_explorer(tmp_path):
    write_folder(tmp_path, **FAKES["explorer"])
    folder = run()
    with np.load(folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        stored = np.exp(arrays["behavior"][:, : arrays["head"].max()])
    np.testing.assert_allclose(stored.sum(-1), 1, rtol=1e-5)
    assert stored.min() >= 0.3 / 2 - 1e-6


def test_a_memory_stays_with_its_lane_when_ticks_are_skipped(tmp_path):
    write_folder(tmp_path, **FAKES["recurrent and skipping"])
    folder = run()
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
