"""Scenes of the protocol of Godot RL Agents: the contract of all adapters, rows by hand, faults, programs."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from algorithm.adapters.adapter import EnvConfig, EnvironmentCrashed, EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.godot.adapter import GodotAdapter
from algorithm.adapters.godot.client import GodotClient
from algorithm.adapters.godot.launch import GodotLaunchConfig
from algorithm.adapters.scenes import adapter as scenes_adapter
from algorithm.adapters.scenes.client import PlayerQuit
from algorithm.adapters.scenes.ports import find_free_port
from algorithm.errors import UserError
from algorithm.specs import ObsSpec
from tests.adapters.configs import opened
from tests.adapters.contract import make_contract
from tests.godot_scene import ROOT, make_scene

SECTION = yaml.safe_load((ROOT / "default_config.yaml").read_text())["base_config"]["godot_args"]
TEMPORARY = tempfile.TemporaryDirectory()  # removed at the end of the process
FOLDER = Path(TEMPORARY.name)
pytestmark = [
    pytest.mark.usefixtures("prepared_scenes"),
    pytest.mark.skipif(sys.platform == "win32", reason="the scripted scene is a shell script"),
]


def make_config(path: Path | None, copies: int = 1, **section) -> EnvConfig:
    build_path = None if path is None else str(path)
    return EnvConfig(
        name="", n_envs=copies, section={**SECTION, "build_path": build_path, "timeout_wait": 20.0, **section}
    )


def make_scenes(folder: Path, task: str, **config) -> GodotAdapter:
    return opened(GodotAdapter(make_config(make_scene(folder, task), **config)))


TestPolicies = make_contract(lambda: make_scenes(FOLDER, "policies", copies=2))
TestTruncating = make_contract(lambda: make_scenes(FOLDER, "truncating"))


def start(folder: Path, task: str, limit: float = 5.0, **how) -> GodotClient:
    return GodotClient(make_scene(folder, task), port=0, start_limit=20.0, limit=limit, **how)


def act(client, branch=0.0):
    """Step with the right numbers and this branch, and return the next tick."""
    return client.step({"agent": np.array([[agent / 2, branch] for agent in range(3)], np.float32)})


def play_by_hand(client, steps):
    """Return [(the agents with a decision: obs, reward), (those whose episode ended: reward, interrupted, known)]."""
    client.reset()
    shown = []
    for _ in range(steps):
        decisions, ended = act(client).batches["agent"]
        fields = ended.agent, ended.reward, ended.interrupted, ended.has_obs
        flags = list(zip(*(field.tolist() for field in fields), strict=True))
        shown.append((decisions.obs["obs"].tolist(), decisions.reward.tolist(), flags))
    return shown


def test_each_agent_gets_its_own_actions_by_name(tmp_path):
    with start(tmp_path, "plain") as client:
        client.reset()
        role = client._policies[0].role
        assert (role.action_spec.continuous, role.action_spec.branches) == (1, (3,))
        assert role.obs_specs == {"obs": ObsSpec((2,))}
        for step in range(2):  # a second step needs another branch
            decisions, _ = act(client, step).batches["agent"]
            assert decisions.reward.tolist() == [2, 2, 2]


def test_an_agent_that_is_done_has_started_its_next_episode(tmp_path):
    with start(tmp_path, "plain") as client:
        *_, third, fourth = play_by_hand(client, 4)
    assert third == ([[0, 3], [1, 3], [2, 0]], [1, 1, 0], [(2, 1.0, False, False)])
    assert fourth == ([[0, 0], [1, 4], [2, 1]], [0, 2, 2], [(0, 2.0, False, False)])


@pytest.mark.parametrize(("limit", "interrupted"), [(None, False), (0, True), (3, True), (4, False)])
def test_a_limit_of_steps_says_what_the_end_of_an_episode_means(tmp_path, limit, interrupted):
    with start(tmp_path, "plain", time_limit=limit) as client:
        assert play_by_hand(client, 3)[-1][2] == [(2, 1.0, interrupted, False)]


def test_a_scene_may_say_it_and_send_the_last_observation(tmp_path):
    adapter = make_scenes(tmp_path, "truncating")
    rows = []
    steps = adapter.reset(0)["agent"]
    for _ in range(8):
        numbers = np.stack([steps.lane / 2, 0 * steps.lane], -1).astype(np.float32)
        steps = adapter.step({"agent": numbers})["agent"]
        fields = steps.lane, steps.obs["obs"][:, 1], steps.first, steps.is_bootstrap_row, steps.reward, steps.alive
        rows += zip(*(field.tolist() for field in fields), strict=True)
    shown = {lane: [row[1:] for row in rows if row[0] == lane] for lane in range(3)}
    assert shown[0][3:5] == [(4, False, True, 2, True), (0, True, False, 0, True)]  # truncated, its end is known
    assert shown[1][5] == (0, True, False, 1, True)  # truncated, its end is not known
    assert shown[2][2] == (0, True, False, 1, False)  # terminated


def test_images_and_integers_are_read(tmp_path):
    with start(tmp_path, "images") as client:
        decisions, _ = client.reset().batches["agent"]
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3).transpose(2, 0, 1)
    for agent in range(3):  # in base64, and in hexadecimal digits
        np.testing.assert_array_equal(decisions.obs["view_2d"][agent], image)
    np.testing.assert_array_equal(decisions.obs["kind"], np.eye(3, 4))


def test_observations_can_be_ignored(tmp_path):
    with start(tmp_path, "images", ignored=["view_2d"]) as client:
        assert set(client.reset().batches["agent"][0].obs) == {"kind"}
    with pytest.raises(EnvironmentStartError, match="cannot be trained: ignore_observations: there is no observation"):
        start(tmp_path, "images", ignored=["view"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("unknown", "has a policy 'agent' that cannot be trained: observation 'obs' is 'repeated'; supported are"),
        ("different", "has agents of the policy 'agent' with different spaces: give them other values of policy_name"),
        ("empty", "has 0 agents with 0 policies: put agents into the group AGENT"),
        ("unnamed", "has the policies None, 'prey': give each a name"),
        ("merged", "has the policies 'shared_policy', 'agent': give each a name, 'shared_policy' or 'agent' but not"),
    ],
)
def test_a_scene_that_cannot_be_trained_is_one_line(tmp_path, task, message):
    with pytest.raises(EnvironmentStartError, match=f"^the player {task}.x86_64 {message}"):
        start(tmp_path, task)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("crashing", "ended with exit code 3; it printed: arguments --port=.* the ball is lost"),
        ("hanging", "did not answer within 1 s"),
        ("nan", "sent NaN or infinity"),
        ("infinite", "sent Infinity"),
        ("garbage", "sent a message that cannot be read: JSONDecodeError"),
        ("nameless", "sent no observation 'obs' of an agent of 'agent'"),
        ("fewer", "sent 4 observations of 3 agents"),
    ],
)
def test_a_fault_is_one_line_and_ends_the_scene(tmp_path, task, message):
    client = start(tmp_path, task, limit=1.0)
    client.reset()
    act(client)
    act(client)
    with pytest.raises(EnvironmentCrashed, match=f"^the player {task}.x86_64 {message}"):
        act(client)
    assert client._process.get_exit_reason()
    with pytest.raises(EnvironmentCrashed, match="is not connected any more"):
        act(client)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("wide", "sent 9 values as 'obs' of 3 agents of 'agent', not 2 of each"),
        ("fraction", r"sent 'kind' as \[0.9, 0.9, 0.9\], although it is a whole number"),
        ("numbers", "sent 'view_2d' as numbers, although '2d' in a name stands for the bytes of an image"),
        ("null", "sent no observation 'kind' of an agent of 'agent'; its log ends with: arguments"),
    ],
)
def test_an_observation_that_does_not_suit_its_space_is_one_line(tmp_path, task, message):
    client = start(tmp_path, task, log=tmp_path / "log")
    with pytest.raises(EnvironmentCrashed, match=message):
        client.reset()


def test_a_policy_whose_name_is_no_file_is_one_line(tmp_path):
    adapter = make_scenes(tmp_path, "dots")
    with pytest.raises(UnsupportedEnvironment, match=r"a file cannot have the name '\.\.': give another in Godot"):
        adapter.reset(0)


@pytest.mark.parametrize(
    ("build_path", "args", "message"),
    [
        ("editor", {"level": 3}, r"base_config.env_args \(level\) has no effect in the editor"),
        ("game", {"speedup": 3}, "env_args.speedup is what base_config.godot_args.speedup sets"),
        ("game", {"env_seed": 3}, "env_args.env_seed is what base_config.seed sets"),
    ],
)
def test_arguments_without_an_effect_are_one_line(build_path, args, message):
    with pytest.raises(UserError, match=message):
        GodotLaunchConfig(EnvConfig(name="", section={**SECTION, "build_path": build_path}, args=args))


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentStartError, match=f"port {port} is taken by .*: end it, or give another port"):
            GodotClient(None, port=port, start_limit=1.0, limit=1.0)


def press_play(task: str, port: int) -> list[subprocess.Popen]:
    """Start a task half a second later, as the editor does; return a list that receives its process."""
    command = [sys.executable, "-m", "tests.godot_scene", task, f"--port={port}"]
    played: list[subprocess.Popen] = []
    start = partial(subprocess.Popen, command, cwd=ROOT, stdout=subprocess.DEVNULL)
    threading.Timer(0.5, lambda: played.append(start())).start()
    return played


def test_a_scene_in_the_editor_that_says_nothing_is_one_line():
    port = find_free_port()
    played = press_play("silent", port)
    with pytest.raises(EnvironmentStartError, match="^the editor did not describe its agents within 0.5 s"):
        GodotClient(None, port=port, start_limit=None, limit=0.5)
    played[0].kill()
    played[0].wait()


def test_the_editor_is_awaited_and_stop_is_no_crash():
    port = find_free_port()
    played = press_play("plain", port)
    client = GodotClient(None, port=port, start_limit=None, limit=20.0)
    client.reset()
    act(client)
    played[0].kill()
    played[0].wait()
    with pytest.raises(PlayerQuit, match="^the editor quit"):
        act(client)


def test_a_scene_that_crashes_starts_again_while_the_other_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(scenes_adapter, "FIRST_PAUSE", 0.0)
    adapter = make_scenes(tmp_path, "policies", copies=2, log_folder=str(tmp_path / "logs"))
    steps = adapter.reset(0)
    assert {name: role.lanes for name, role in adapter.roles.items()} == {"hunter": 4, "prey": 2}
    adapter._scenes[0]._process.kill()
    deadline = time.monotonic() + 60
    while adapter.restarts < 1 or len(steps.get("prey", steps.get("hunter")).lane) < 2:
        assert time.monotonic() < deadline
        sizes = {name: (len(step.lane), 2) for name, step in steps.items()}
        steps = adapter.step({name: np.zeros(size, np.float32) for name, size in sizes.items()}) or steps
    assert "ended without a message" in adapter.last_error
    adapter.close()
    first = (tmp_path / "logs" / "Player-1.log").read_text(encoding="utf-8")
    assert first.startswith("arguments --headless --disable-render-loop --fixed-fps 60 --env_seed=")


def make_project(folder: Path, version: int) -> Path:
    folder.mkdir()
    (folder / "project.godot").write_text(f"; a comment\nconfig_version={version}\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("version", "render_mode", "installed", "expected"),
    [
        (4, None, ("godot3", "godot3-server"), "godot3-server"),
        (4, "human", ("godot3", "godot3-server"), "godot3"),
        (5, None, ("godot", "godot3-server"), "godot"),
        (5, "human", ("godot", "godot4"), "godot4"),
        (5, None, ("godot3",), None),
        (4, None, ("godot3",), None),
    ],
)
def test_a_project_is_opened_by_the_engine_of_its_version(
    tmp_path, monkeypatch, version, render_mode, installed, expected
):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in installed:
        (programs / name).write_text("")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    section = {**SECTION, "project_path": str(make_project(tmp_path / "project", version))}
    launch = GodotLaunchConfig(EnvConfig(name="", section=section, render_mode=render_mode))
    if expected is None:
        with pytest.raises(
            EnvironmentStartError, match=r"no program is installed that opens .* \(godot(4, godot|3-server, .*)\)"
        ):
            launch.find_program()
        return
    assert launch.find_program() == programs / expected
    arguments = launch.make_arguments(7)
    assert arguments[:2] == ["--path", str(tmp_path / "project")]
    assert ("--headless" in arguments) == (version == 5 and render_mode is None)
    assert ("--speedup=1" in arguments) == ("--fixed-fps" not in arguments) == (render_mode is not None)


def test_arguments_of_the_scene_are_those_of_its_environment():
    section = {**SECTION, "build_path": "game", "action_repeat": 4, "additional_args": ["ball.tscn"], "fixed_fps": None}
    launch = GodotLaunchConfig(EnvConfig(name="", section=section, args={"level": 3}))
    expected = ["ball.tscn", "--headless", "--disable-render-loop"]
    expected += ["--env_seed=7", "--speedup=8", "--action_repeat=4", "--level=3"]
    assert launch.make_arguments(7) == expected


def test_ports_above_the_largest_are_one_line():
    section = {**SECTION, "build_path": "game", "base_port": 65535}
    assert GodotLaunchConfig(EnvConfig(name="", section=section)).get_port(0) == 65535
    with pytest.raises(UserError, match="base_port is 65535, so that environment 2 of 2 has port 65536; the largest"):
        GodotLaunchConfig(EnvConfig(name="", section=section, n_envs=2))


def test_a_folder_without_a_project_is_one_line(tmp_path):
    launch = GodotLaunchConfig(EnvConfig(name="", section={**SECTION, "project_path": str(tmp_path)}))
    with pytest.raises(EnvironmentStartError, match=f"there is no project.godot in {tmp_path}"):
        launch.find_program()


def test_the_editor_is_the_default_and_overrides_a_project(tmp_path):
    for section, path in [
        (SECTION, None),
        ({**SECTION, "project_path": "project"}, "project"),
        ({**SECTION, "project_path": "project", "build_path": "editor"}, None),
        ({**SECTION, "project_path": "project", "build_path": "game"}, "game"),
    ]:
        launch = GodotLaunchConfig(EnvConfig(name="", section=section))
        assert (launch.path, launch.project) == (path, Path(path) if path == "project" else None)
        assert launch.get_port(0) == (0 if path else 11008)
