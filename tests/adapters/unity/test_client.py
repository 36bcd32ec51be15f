"""The connection to players in real processes: each failure is one line, no process remains. Also its self-test."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError  # noqa: E402
from algorithm.adapters.scenes import watchdog  # noqa: E402
from algorithm.adapters.scenes.client import PlayerQuit  # noqa: E402
from algorithm.adapters.scenes.ports import find_free_port  # noqa: E402
from algorithm.adapters.unity import adapter, launch, self_test  # noqa: E402
from algorithm.adapters.unity import client as client_module  # noqa: E402
from algorithm.adapters.unity.client import Server, UnityClient, api  # noqa: E402
from algorithm.tools.doctor.check import SubprocessFailed, run_in_subprocess  # noqa: E402
from tests.adapters.unity.played import ENVIRONMENT, act, press_play, start  # noqa: E402
from tests.faults.runs import is_alive, wait_until, wait_until_dead  # noqa: E402
from tests.unity_player.launcher import make_player  # noqa: E402

posix = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture
def port():
    return find_free_port()


def wait_for_editor(port: int, start_limit: float | None = 20.0) -> UnityClient:
    return UnityClient(None, port=port, start_limit=start_limit, limit=20.0)


BROKEN = {
    "crash": "crashed with signal SIGSEGV" if os.name == "posix" else "ended with exit code 3",
    "exit": "ended with exit code 3",
    "hang": "did not answer within 1 s",
    "quit": "quit",
    "nan": "sent NaN or infinity in the sensor 'VectorSensor_size8' of '3DBall?team=0'",
    "huge": "ended with exit code 0",  # gRPC refuses its message, and the player quits as it does without a trainer
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_failure_is_an_error_of_one_line_and_leaves_no_process(tmp_path, fault):
    limit = 1.0 if fault == "hang" else 5.0
    client = start(tmp_path, "balance_ball", "--fault", fault, "--at", "3", limit=limit)
    pid = client._process.pid
    tick = act(client, act(client, client.reset()))
    with pytest.raises(PlayerQuit if fault == "quit" else EnvironmentCrashed) as error:
        act(client, tick)
    assert str(error.value).startswith(f"the player {make_player(tmp_path, 'balance_ball').name} {BROKEN[fault]}")
    assert len(str(error.value).splitlines()) == 1
    assert not is_alive(pid)
    with pytest.raises(EnvironmentCrashed, match="is not connected any more"):
        client.reset()
    client.close()


FAILED = {
    "never": "did not connect within 1 s",
    "handshake": "ended with exit code 3",
    "version": "uses version 2.0.0 of ML-Agents' protocol, not 1.5.0",
    "old": "was built with version 1.0.0 of ML-Agents' package, which is older than 2.0",
}


@pytest.mark.parametrize("fault", FAILED)
def test_a_failed_start_is_an_error_of_one_line(tmp_path, fault):
    with pytest.raises(EnvironmentStartError) as error:
        start(tmp_path, "balance_ball", "--fault", fault, start_limit=1.0 if fault == "never" else 20.0)
    assert str(error.value).endswith(FAILED[fault]) and not isinstance(error.value, EnvironmentCrashed)


def test_the_last_output_of_a_player_is_quoted(tmp_path):
    def end_of(*arguments, **how):
        client = start(tmp_path, "balance_ball", "--fault", "exit", arguments=arguments, **how)
        with pytest.raises(EnvironmentCrashed) as error:
            client.reset()
        return str(error.value).partition("exit code 3")[2]

    assert end_of() == "; it printed: No valid licence | for this machine"
    log = tmp_path / "Player-0.log"
    for _ in range(2):
        assert end_of("-logFile", str(log), log=log) == "; its log ends with: No valid licence | for this machine"
    assert (tmp_path / "Player-0-prev.log").read_text() == log.read_text()
    log.write_text("of an earlier start")
    assert end_of(log=log) == "; it printed: No valid licence | for this machine"


@posix
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"#!/bin/sh\necho Activate your licence > Player.log\nexec sleep 60\n", "did not connect within 1 s; {log}"),
        (b"\x00", "the player built.x86_64 cannot be started: "),
    ],
    ids=["silent", "no program"],
)
def test_a_program_that_is_no_player_is_an_error_of_one_line(tmp_path, program, message):
    path = tmp_path / "built.x86_64"
    path.write_bytes(program)
    path.chmod(0o755)
    message = message.format(log="its log ends with: Activate your licence$")
    with pytest.raises(EnvironmentStartError, match=message):
        UnityClient(path, port=0, start_limit=1.0, limit=1.0, log=tmp_path / "Player.log")


def test_no_thread_remains_after_several_players(tmp_path):
    for _ in range(2):
        client = start(tmp_path, "hybrid")
        client.close()
        client.close()
    wait_until(lambda: "unity" not in [thread.name for thread in threading.enumerate()], 10)


def test_a_taken_port_is_reported_at_once(port, monkeypatch):
    def assert_taken():
        with pytest.raises(EnvironmentStartError, match=f"port {port} is taken"):
            Server(port)

    first = Server(port)
    assert_taken()
    monkeypatch.setattr(client_module, "is_taken", lambda port: False)  # as if both had found the port free
    assert_taken()
    monkeypatch.undo()
    first.close()
    first.close()
    Server(port).close()  # and it is free at once
    with socket.create_server(("127.0.0.1", port)):
        assert_taken()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux only")
def test_other_addresses_are_not_used():
    server = Server(0)
    for address, is_reached in (("127.0.0.1", True), ("127.0.0.2", False)):
        with socket.socket() as probe:
            assert (probe.connect_ex((address, server.port)) == 0) == is_reached
    server.close()


def test_the_client_waits_for_the_editor_and_detects_its_end(port):
    player = press_play(port, "balance_ball")
    with wait_for_editor(port, start_limit=None) as client:
        tick = act(client, client.reset())
        player.kill()
        player.wait()
        time.sleep(0.2)  # until gRPC detects it
        with pytest.raises(EnvironmentCrashed, match="^the editor broke the connection$"):
            act(client, tick)  # long before the limit


def test_the_last_message_reaches_the_player(port, tmp_path):
    player = press_play(port, "balance_ball", "-logFile", str(tmp_path / "log"))
    wait_for_editor(port).close()
    assert player.wait(10) == 0
    assert (tmp_path / "log").read_text(encoding="utf-8") == ""  # otherwise: the trainer disconnected


def test_the_protocol_is_that_of_ml_agents_own_client():
    pytest.importorskip("distutils.version")  # which ML-Agents' client needs
    from mlagents_envs.environment import UnityEnvironment

    capabilities = api.UnityRLCapabilitiesProto(**dict.fromkeys(client_module.CAPABILITIES, True))
    assert capabilities == UnityEnvironment._get_capabilities_proto()
    assert client_module.API_VERSION == UnityEnvironment.API_VERSION
    assert launch.UnityLaunchConfig.editor_port == UnityEnvironment.DEFAULT_EDITOR_PORT
    assert adapter.FIRST_PORT == UnityEnvironment.BASE_ENVIRONMENT_PORT


def test_missing_actions_and_actions_of_another_shape_are_errors(tmp_path):
    with start(tmp_path, "hybrid") as client:
        tick = client.reset()
        for rows, actions in ((0, {}), (5, {"Hybrid?team=0": np.zeros((5, 4))})):
            message = rf"actions of 'Hybrid.team=0' have the shape \({rows}, 4\), not \(6, 4\)"
            with pytest.raises(ValueError, match=message):
                client.step(actions)
        act(client, tick)


TRAINER = """
import sys, time
from pathlib import Path
from algorithm.adapters.unity.client import UnityClient
client = UnityClient(Path(sys.argv[1]), port=0, start_limit=20.0, limit=20.0)
client.reset()
print(client._process.pid, flush=True)
{}
"""


def trainer(folder: Path, end: str, *flags: str) -> tuple[subprocess.Popen, int]:
    """Start a trainer with a player that then executes `end`; return its process and the player's id."""
    code = [sys.executable, "-W", "error::DeprecationWarning", "-c", TRAINER.format(end)]
    program = str(make_player(folder, "balance_ball", *flags))
    process = subprocess.Popen([*code, program], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return process, int(process.stdout.readline())


@posix
@pytest.mark.parametrize(("end", "code"), [("", 0), ("1 / 0", 1)])
def test_a_trainer_that_does_not_close_its_client_exits(tmp_path, end, code):
    process, player = trainer(tmp_path, end)
    assert process.wait(20) == code
    wait_until_dead([player], 10)


@posix
def test_a_stopped_player_does_not_survive_a_killed_trainer(tmp_path):
    process, player = trainer(tmp_path, "time.sleep(60)")
    os.kill(player, signal.SIGSTOP)
    process.kill()
    process.wait()
    wait_until_dead([player], 10)


@posix
def test_a_player_ends_with_a_killed_watchdog(tmp_path):
    client = start(tmp_path, "balance_ball", "--fault", "hang", "--at", "1")
    tick = client.reset()
    client._process._watchdog.kill()
    with pytest.raises(EnvironmentCrashed, match="ended with its watchdog, which was killed"):
        act(client, tick)
    wait_until_dead([client._process.pid], 10)


@posix
def test_processes_that_a_player_started_end_with_it(tmp_path):
    """Test this with a child process, such as Unity's crash handler."""
    script = "sleep 60 & echo $! > child; exit 7"
    command = [sys.executable, watchdog.__file__, "0.1", "", "/bin/sh", "-c", script]
    finished = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=10)
    assert finished.stdout.splitlines()[1] == "exit 7 "
    wait_until_dead([int((tmp_path / "child").read_text())], 10)


@posix
def test_ctrl_c_in_the_terminal_reaches_the_trainer_only(tmp_path):
    client = start(tmp_path, "balance_ball")
    pids = [client._process.pid, client._process._watchdog.pid]
    assert os.getpgid(0) not in [os.getpgid(pid) for pid in pids]
    client.close()


def test_an_error_of_the_scene_is_reported(monkeypatch):
    def play(port):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(self_test, "run_stub", play)
    monkeypatch.setattr(self_test, "TIMEOUT", 0.3)
    with pytest.raises(RuntimeError, match="no such thing"):
        self_test.run_self_test()


def test_a_scene_that_never_connects_is_reported(monkeypatch):
    monkeypatch.setattr(self_test, "TIMEOUT", 0.3)
    monkeypatch.setattr(self_test, "run_stub", lambda port: None)
    with pytest.raises(EnvironmentStartError, match="did not connect"):
        self_test.run_self_test()


@pytest.mark.slow
def test_protobuf_in_pure_python_is_reported(monkeypatch):
    """Test the report: protobuf in pure Python fails in some versions and is slow in others."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    try:
        error_line = run_in_subprocess("algorithm.adapters.unity.self_test:run_self_test")
    except SubprocessFailed as error:
        error_line = str(error)
    assert "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in error_line
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    assert "unset" not in self_test.run_self_test()


def test_a_changed_message_is_an_error(monkeypatch):
    make_message = self_test._make_message
    monkeypatch.setattr(self_test, "_make_message", lambda observed: make_message(observed / 2))
    with pytest.raises(EnvironmentCrashed, match="sent the action 0.5, but the scene received 0.25"):
        self_test.run_self_test()
