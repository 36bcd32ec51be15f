"""Steps of scenes as lanes, and failures of scenes; the contract of all adapters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from algorithm.adapters.adapter import EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.curriculum import EnvironmentParameters, Lesson, Uniform
from algorithm.adapters.scenes import adapter as scenes_adapter
from algorithm.adapters.scenes.ports import find_free_port
from algorithm.adapters.scenes.scene import Batch, SceneTick
from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.launch import UnityLaunchConfig
from algorithm.adapters.wrappers import RestartOnFailure
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.adapters.configs import opened
from tests.adapters.contract import _random_actions, make_contract
from tests.adapters.unity.played import ENVIRONMENT, make_config, make_scenes, press_play
from tests.faults.namespaces import list_descendants
from tests.faults.runs import wait_until_dead
from tests.unity_player.launcher import ROOT, make_player

CAMERA = {"Camera": ObsSpec((3, 8, 8))}
# The contract tests and the test with kill -9 start the processes of scenes as users do.
pytestmark = pytest.mark.usefixtures("prepared_scenes")
TEMPORARY = tempfile.TemporaryDirectory()  # removed at the end of the process
FOLDER = Path(TEMPORARY.name)

TestStaggeredInTwoScenes = make_contract(lambda: make_scenes(FOLDER, "staggered", "--seed", "3", copies=2, agents=3))
TestGrid = make_contract(lambda: make_scenes(FOLDER, "grid", "--seed", "3", "--size", "20", "--png"))


@pytest.fixture
def at_once(monkeypatch):
    """Remove the pause before a restart."""
    monkeypatch.setattr(scenes_adapter, "FIRST_PAUSE", 0.0)


def play(adapter, ticks):
    """Return {role: Step} of `ticks` ticks with random actions."""
    rng = np.random.default_rng(0)
    shown = [adapter.reset(0)]
    for _ in range(ticks):
        shown.append(adapter.step(_random_actions(adapter, shown[-1], rng)))
    return shown


def rows(shown, role):
    """Return {lane: its rows (observation, first, final, reward, alive)}."""
    lanes = {}
    for step in (steps[role] for steps in shown if role in steps):
        (obs, *_), fields = step.obs.values(), (step.first, step.is_bootstrap_row, step.reward, step.alive)
        for row, lane in enumerate(step.lane.tolist()):
            lanes.setdefault(lane, []).append((obs[row].tolist(), *(field[row].item() for field in fields)))
    return lanes


def test_staggered_decisions_are_the_hand_written_rows(tmp_path):
    adapter = make_scenes(tmp_path, "staggered", agents=50)  # the limit is no number of lanes
    lanes = rows(play(adapter, 11), "Staggered")
    assert adapter.roles["Staggered"].lanes == 3
    # Lane 0 is agent 1, lane 1 agent 2; agents 3 and 4 follow each other in lane 2. An observation is (agent, tick).
    expected = {
        0: [
            ([1, 0], True, False, 0.0, True),
            ([1, 1], False, False, 0.1, True),
            ([1, 2], False, False, 0.1, True),
            ([1, 4], False, True, 0.2, True),
            ([1, 4], True, False, 0.0, True),
            ([1, 6], False, False, 0.2, True),
            ([1, 8], True, False, 0.2, False),
            ([1, 10], False, False, 0.2, True),
        ],
        1: [
            ([2, 0], True, False, 0.0, True),
            ([2, 2], False, False, 0.2, True),
            ([2, 4], False, False, 0.2, True),
            ([2, 6], False, True, 0.2, False),
            ([2, 7], True, False, 0.0, True),
            ([2, 8], False, False, 0.1, True),
            ([2, 10], False, False, 0.2, True),
        ],
        2: [
            ([3, 4], True, False, 0.0, True),
            ([3, 5], False, True, 0.1, False),
            ([4, 8], True, False, 0.0, True),
            ([4, 9], False, True, 0.1, True),
        ],
    }
    for lane, hand_written in expected.items():
        assert len(lanes[lane]) >= len(hand_written) - 2
        for (obs, *flags), (own, *others) in zip(lanes[lane], hand_written, strict=False):
            assert obs == own and flags == pytest.approx(others)


def test_sensors_and_masks_match_the_scene(tmp_path):
    grid = make_scenes(tmp_path, "grid", "--size", "20", "--png")
    obs = grid.reset(0)["GridWorld"].obs
    assert grid.roles["GridWorld"].obs_specs == {
        "CameraSensor": ObsSpec((3, 20, 20), "uint8", high=255.0),
        "GoalSensor": ObsSpec((2,)),
        "action_mask": ObsSpec((5,), "uint8"),
    }
    assert set(np.unique(obs["CameraSensor"])) == {0, 230, 255}
    assert obs["action_mask"][:, 0].all()  # to stay is always possible


def test_each_agent_gets_its_own_action(tmp_path):
    adapter = make_scenes(tmp_path, "hybrid", copies=2)
    steps = adapter.reset(0)
    shapes = {name: spec.shape for name, spec in adapter.roles["Hybrid"].obs_specs.items()}
    assert shapes == {"Buffer": (6,), "Vector": (7,), "action_mask": (5,)}
    for _ in range(3):
        vector = steps["Hybrid"].obs["Vector"]
        right = [vector[:, :2], vector[:, 2:4].argmax(1)[:, None], vector[:, 4:].argmax(1)[:, None]]
        steps = adapter.step({"Hybrid": np.concatenate(right, 1).astype(np.float32)})
        np.testing.assert_allclose(steps["Hybrid"].reward, 2, atol=1e-5)


def test_a_late_behavior_is_a_role_from_then_on_and_group_rewards_are_added(tmp_path):
    adapter = make_scenes(tmp_path, "two_behaviors")
    steps, seen = adapter.reset(0), []
    for _ in range(24):
        seen.append(set(steps))
        assert set(steps) <= set(adapter.roles)
        right = {"Walker": lambda obs: obs["Number"], "Watcher-team1": lambda obs: obs["Sign"].argmax(1)[:, None]}
        steps = adapter.step({role: right[role](step.obs).astype(np.float32) for role, step in steps.items()})
        last = steps.get("Watcher-team1")
    assert seen[0] == {"Walker"}
    assert set(adapter.roles) == {"Walker", "Watcher-team1"}
    assert last.reward.tolist() == [1.5] * 3


def test_late_agents_get_lanes_after_the_other_agents(tmp_path):
    adapter = make_scenes(tmp_path, "arrivals", copies=2)
    shown, lanes = [adapter.reset(0)], []
    while len(shown) < 125:
        lanes.append(adapter.roles["Arrivals"].lanes)
        shown.append(adapter.step({role: step.obs["Vector"][:, :1] % 2 for role, step in shown[-1].items()}))
    # Two agents request a decision first, two more one tick later, the fifth two ticks later, and two at tick 30.
    assert sorted(set(lanes)) == [4, 8, 10, 14]
    agents = {lane: {row[0][0] for row in found} for lane, found in rows(shown, "Arrivals").items()}
    # The first lanes of an environment are adjacent, and so are the lanes that one tick adds. Agents that appear after
    # the visitors of tick 30 have ended take their lanes.
    first = {0: {0}, 1: {3}, 2: {0}, 3: {3}, 4: {1}, 5: {4}, 6: {1}, 7: {4}, 8: {2}, 9: {2}}
    visitors = [{100, 200, 300}, {101, 201, 301}] * 2
    assert agents == first | dict(enumerate(visitors, len(first)))
    for found in rows(shown, "Arrivals").values():
        assert found[0][1:] == (True, False, 0.0, True)
        assert all(row[3] == (0.0 if row[1] else 1.0) for row in found)  # each agent received its own action


@pytest.mark.parametrize(("limit", "appear"), [(1, 0), ({"Staggered": 2}, 5)], ids=str)
def test_more_agents_than_the_limit_are_an_error_of_one_line(limit, appear, tmp_path):
    adapter = make_scenes(tmp_path, "staggered", agents=limit)
    most = limit if isinstance(limit, int) else limit["Staggered"]
    message = rf"more than {most} agents of role 'Staggered'.*the limit base_config\.unity_args\.agents: raise it"
    with pytest.raises(UnsupportedEnvironment, match=message):
        play(adapter, appear)


def test_lessons_and_samplers_are_sent_and_advance(tmp_path):
    record = tmp_path / "recorded"
    lessons = [Lesson("easy", 1.0, "Hybrid", 3, -100.0), Lesson("hard", Uniform(2, 3))]
    scene = EnvironmentParameters({"gravity": 9.81, "height": lessons})
    how = {"parameters": scene, "ended": scene.record_episode}
    play(make_scenes(tmp_path, "hybrid", "--record", str(record), **how), 30)
    assert scene.curricula["height"].lesson.name == "hard"
    recorded = [next(iter(json.loads(line).items())) for line in record.read_text().splitlines()]
    assert ("number", ["gravity", pytest.approx(9.81)]) in recorded
    heights = [(kind, given[-2:]) for kind, given in recorded if kind in ("number", "uniform") and "height" in given]
    assert heights == [("number", ["height", 1.0]), ("uniform", [2.0, 3.0])]


def test_statistics_of_scenes_are_collected_until_they_are_read(tmp_path):
    adapter = RestartOnFailure(lambda: make_scenes(tmp_path, "balance_ball", copies=2), max_restarts=0)
    play(adapter, 5)
    assert 0 < adapter.statistics()["Ball/Distance"] < 3
    assert adapter.statistics() == {}


@pytest.mark.parametrize(
    ("fault", "why"),
    [("crash", "crashed with signal|exit code"), ("hang", "did not (answer|connect) within 3 s"), ("nan", "NaN")],
)
def test_a_failed_environment_starts_again_while_the_other_continues(fault, why, tmp_path, at_once, caplog):
    how = {"copies": 2, "agents": 3, "timeout_wait": 3.0 if fault == "hang" else 20.0}
    adapter = make_scenes(tmp_path, "staggered", "--fault", fault, "--at", "6", **how)
    other = make_config(make_player(tmp_path / "sound", "staggered"))
    adapter._scenes[1].launch = UnityLaunchConfig(other)
    rng, shown, started = np.random.default_rng(0), [adapter.reset(0)], 1
    while started < 2:
        shown.append(adapter.step(_random_actions(adapter, shown[-1], rng)))
        started += sum(row[1] and row[0] == [1, 0] for row in rows(shown[-1:], "Staggered").get(0, []))
    lanes = rows(shown, "Staggered")
    assert adapter.restarts >= 1
    assert all(re.search(why, record.message) for record in caplog.records), caplog.text
    assert "environment 0 of 2" in caplog.records[0].message
    _, again, *_ = (k for k, row in enumerate(lanes[0]) if row[0] == [1, 0])
    assert lanes[0][again] == ([1, 0], True, False, 0.0, True)
    assert not lanes[0][again - 1][2]  # the row before is not a final row, so no update uses the transition
    assert [row[0] for row in lanes[2]].count([1, 0]) == 1
    assert lanes[2][-1][0][1] > 30


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"timeout_wait": 1.0}, "the player .* did not connect within 1 s"), ({"build_path": "no"}, "there is no player")],
)
def test_a_player_that_does_not_start_is_an_error_of_one_line(changes, why, tmp_path):
    with pytest.raises(EnvironmentStartError, match=why):
        make_scenes(tmp_path, "balance_ball", "--fault", "never", **changes).reset(0)


def test_a_single_color_camera_without_graphics_is_an_error_of_one_line():
    def batch(count):
        obs, zeros = {"Camera": pictures[:count]}, np.zeros(count, np.float32)
        return Batch(agent=np.arange(count), obs=obs, reward=zeros, interrupted=zeros > 0, group=zeros.astype(int))

    pictures = np.zeros((2, 3, 8, 8), np.float32)
    tick = SceneTick({"Eye?team=0": (batch(2), batch(0))}, {"Eye?team=0": Role(1, CAMERA, ActionSpec(1))})
    adapter = UnityAdapter(make_config(Path("player"), no_graphics=True))
    with pytest.raises(UnsupportedEnvironment, match="'Camera' shows a single color.*no_graphics"):
        adapter._make_steps({0: tick})
    pictures[0, 0, 0, 0] = 1
    (steps,) = adapter._make_steps({0: tick})
    assert set(steps) == {"Eye"}


def test_the_adapter_waits_for_the_editor_and_continues_after_stop_and_play(caplog):
    port, again = find_free_port(), []
    env_config = make_config(None, base_port=port, agents=3)
    adapter = opened(RestartOnFailure(lambda: UnityAdapter(env_config), max_restarts=0))

    def press():
        press_play(port, "staggered", "--fault", "quit", "--at", "6").wait()
        again.append(press_play(port, "staggered"))

    user = threading.Thread(target=press)
    user.start()
    shown, begun, rng = [adapter.reset(0)], 0, np.random.default_rng(0)
    limit = time.monotonic() + 60  # ticks may have no rows until Play is pressed
    while begun < 2 and time.monotonic() < limit:
        shown.append(adapter.step(_random_actions(adapter, shown[-1], rng)))
        begun = [row[:2] for row in rows(shown, "Staggered").get(0, [])].count(([1, 0], True))
    user.join()
    assert (begun, adapter.restarts) == (2, 0)
    logged = [record.message for record in caplog.records]
    assert logged.count(f"Waiting for Unity on port {port}: press Play in the editor") == 2
    assert "the editor quit; its episodes are truncated" in logged
    adapter.close()
    assert again[0].wait(20) == 0


TRAINER = """
import sys
from pathlib import Path
from tests.adapters.unity.played import make_scenes
if __name__ == "__main__":
    make_scenes(Path(sys.argv[1]), "balance_ball").reset(0)
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_kill_9_of_the_trainer_leaves_no_player(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    command, pipe = [sys.executable, str(script), str(tmp_path)], subprocess.PIPE
    trainer = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdin=pipe, stdout=pipe)
    assert trainer.stdout.readline() == b"open\n"
    children = list_descendants(trainer.pid)
    assert len(children) >= 3  # the process of the scene, the watchdog, the player
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    wait_until_dead(children, 10)
