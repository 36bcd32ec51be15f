"""Action noise: the levels of lanes, the stored statistics, and none in evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from algorithm.cli import main
from algorithm.distributions import CategoricalFamily, ClippedGaussianFamily, Gaussian
from algorithm.exploration.explorers import ActionNoise
from algorithm.parts.run_folder import RunFolder
from algorithm.rollout import Decision
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.exploration.agents import Fixed, step_of

OBS = {"obs": ObsSpec((1,))}
GAUSSIAN = ClippedGaussianFamily(1, Gaussian)


def decide(agent, levels, lane, lanes=None, spec=None) -> Decision:
    spec = spec or ActionSpec(branches=(2,))
    explorer = ActionNoise(Role(lanes or len(lane), OBS, spec), levels)
    return explorer.act(agent, step_of(lane), np.zeros((len(lane), 3), np.float32))


def test_levels_rise_from_the_first_lane_to_the_last():
    agent = Fixed(GAUSSIAN, 0.2, np.log(0.3))
    decision = decide(agent, [0.1, 0.7], range(5))
    expected = np.sqrt(0.3**2 + np.linspace(0.1, 0.7, 5) ** 2)
    np.testing.assert_allclose(np.exp(decision.behavior[:, 1]), expected, rtol=1e-5)
    partial_decision = decide(agent, [0.1, 0.7], [1, 4], lanes=5)  # the others do not await a decision
    np.testing.assert_array_equal(partial_decision.behavior, decision.behavior[[1, 4]])


def test_a_single_lane_has_the_lowest_level():
    decision = decide(Fixed(GAUSSIAN, 0.0, 0.0), [0.0, 1.0], [0])
    np.testing.assert_array_equal(decision.behavior, [[0, 0]])


def test_the_memory_belongs_to_the_agent_and_the_action_follows_from_the_stored_sample():
    decision = decide(Fixed(GAUSSIAN, 0.9, 0.0), (2, 2), range(200), spec=ActionSpec(continuous=1))
    np.testing.assert_array_equal(decision.memory, np.ones((200, 3)))
    np.testing.assert_array_equal(decision.action, decision.raw_action.clip(-1, 1))
    assert (np.abs(decision.raw_action) > 1).any()


@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_samples_follow_the_statistics_that_are_stored(level):
    decision = decide(Fixed(CategoricalFamily(3), 2.0, 0.0, -1.0), [level, level], range(40_000))
    stored = np.exp(decision.behavior[0])
    np.testing.assert_allclose(stored.sum(), 1, rtol=1e-5)
    found = np.bincount(decision.raw_action[:, 0].astype(int), minlength=3) / 40_000
    np.testing.assert_allclose(found, stored, atol=0.01)
    softmax = np.exp([2, 0, -1]) / np.exp([2, 0, -1]).sum()
    np.testing.assert_allclose(stored, (1 - level) * softmax + level / 3, rtol=1e-4)


BAD = [None, 0.3, "high", [], [0.3], [0, 0.1, 0.2], [0.3, 0.1], [-0.1, 0.1], [0, "high"], [True, True]]


@pytest.mark.parametrize("levels", [*BAD, [0, float("inf")], [float("nan")] * 2], ids=str)
def test_invalid_levels_are_rejected(levels):
    for spec in (ActionSpec(continuous=2), ActionSpec(branches=(3,))):
        with pytest.raises(ValueError, match=r"levels are .*; they must be two numbers \[min, max\] with 0 <= min"):
            ActionNoise(Role(2, OBS, spec), levels)


def test_only_levels_of_discrete_actions_are_at_most_one():
    ActionNoise(Role(2, OBS, ActionSpec(continuous=1)), [0, 3])
    for spec in (ActionSpec(branches=(3,)), ActionSpec(1, (2,))):
        with pytest.raises(ValueError, match="<= 1, since it is the probability of a random action"):
            ActionNoise(Role(2, OBS, spec), [0, 1.5])


CONFIG = """
default:
  base_config: {{env_type: PROBE, suggest_settings: false, env_name: choice, n_envs: 3,
    max_step: 240, log_every: 80, evaluate_every: 80}}
  acer_config: {{rollout_length: 8, sequence_length: 8, batch_size: 4, learning_starts: 32}}
  explorer: {explorer}
"""


def environment(explorer: str) -> None:
    folder = Path("envs/mine/task")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.format(explorer=explorer))


def test_a_run_explores_only_in_training_and_stores_the_noisy_statistics(monkeypatch):
    rows = []
    choose = ActionNoise.act

    def watched(self, agent, step, memory):
        rows.append(np.count_nonzero(~step.is_bootstrap_row))
        return choose(self, agent, step, memory)

    monkeypatch.setattr(ActionNoise, "act", watched)
    environment("{Action_Noise: {levels: [0.0, 0.6]}}")
    assert main.main("mine/task -n a".split()) == 0
    folder = RunFolder.find("mine/task", "a")
    # No evaluation among them: the last decisions of a run have not been counted as executed yet.
    assert 0 <= sum(rows) - folder.find_latest().counters.env_steps <= 3
    with np.load(folder.find_latest().folder / "agent" / "replay.npz") as arrays:
        probs = np.exp(arrays["behavior"][: arrays["head"].min()])  # [rows, lanes, actions], normalised where noisy
    assert (probs[:, 1].min(-1) >= 0.15 - 1e-6).all() and (probs[:, 2].min(-1) >= 0.3 - 1e-6).all()

    before = len(rows)
    for command in ("--run", "--run --disable_sample"):
        assert main.main(["mine/task", "-n", "a", *command.split()]) == 0
    assert len(rows) == before


@pytest.mark.parametrize(
    ("explorer", "message"),
    [
        ("{action_noise: }", "explorer.action_noise: levels are None; they must be two numbers [min, max]"),
        ("{action_noise: [0, 2]}", "explorer.action_noise: levels are [0, 2]"),
        ("{action_noise: {level: [0, 1]}}", "explorer.action_noise: "),
        ("{noise: [0, 1]}", "explorer 'noise' is unknown; use one of: action_noise"),
    ],
)
def test_invalid_settings_are_one_line_and_status_2(explorer, message, capsys):
    environment(explorer)
    assert main.main("mine/task -n a".split()) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and message in shown
    assert not Path("runs/mine/task/a").exists()


def test_added_lanes_have_levels_between_the_other_levels():
    role = Role(3, OBS, ActionSpec(continuous=1))
    explorer, at_once = ActionNoise(role, [0.2, 1.0]), ActionNoise(role, [0.2, 1.0])
    before = explorer.lane_levels.copy()
    for lanes in (4, 8):
        explorer.grow(lanes, 3)
    np.testing.assert_array_equal(explorer.lane_levels[:3], before)
    np.testing.assert_allclose(explorer.lane_levels[3:], [0.6, 0.4, 0.8, 0.3, 0.7], rtol=1e-6)
    assert explorer.lane_levels.dtype == before.dtype
    at_once.grow(8, 3)
    np.testing.assert_array_equal(explorer.lane_levels, at_once.lane_levels)


def test_lanes_added_before_anything_is_stored_have_the_levels_of_initial_lanes():
    first, all_lanes = (ActionNoise(Role(lanes, OBS, ActionSpec(continuous=1)), [0.2, 1.0]) for lanes in (1, 5))
    first.grow(5, 5)
    np.testing.assert_array_equal(first.lane_levels, all_lanes.lane_levels)
