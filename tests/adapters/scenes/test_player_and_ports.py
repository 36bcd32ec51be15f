"""The program of a build is found by its usual names, and ports are checked before the start."""

import os
import socket
import sys
from pathlib import Path

import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.scenes import ports, watchdog
from algorithm.adapters.scenes.player import find_player
from algorithm.adapters.unity.adapter import UnityAdapter


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("platform", "built", "given"),
    [
        ("linux", "Ball.x86_64", "Ball.x86_64"),
        ("linux", "Ball.x86_64", "Ball"),
        ("linux", "my.apps/Ball.x86_64", "my.apps/Ball"),
        ("linux", "build/Ball.x86_64", "build"),
        ("linux", "Ball.x86", "Ball"),
        ("win32", "Ball.exe", "Ball"),
        ("win32", "build/Ball.exe", "build"),
        ("darwin", "Ball.app/Contents/MacOS/Ball", "Ball.app"),
        ("darwin", "Ball.app/Contents/MacOS/other name", "Ball"),
        ("darwin", "build/Ball.app/Contents/MacOS/Ball", "build"),
    ],
)
def test_the_program_of_a_build_is_found(tmp_path, monkeypatch, platform, built, given):
    monkeypatch.setattr(sys, "platform", platform)
    program = put(tmp_path / built)
    if platform != "darwin":  # other files of a build
        put(program.with_name("UnityCrashHandler64.exe" if platform == "win32" else "UnityPlayer.so"))
    assert find_player(tmp_path / given, without="UnityCrashHandler") == program


def test_of_several_programs_the_one_with_the_name_of_the_folder_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    put(tmp_path / "Ball" / "Server.x86_64")
    own = put(tmp_path / "Ball" / "Ball.x86_64")
    assert find_player(tmp_path / "Ball") == own
    put(tmp_path / "other" / "A.x86_64")
    put(tmp_path / "other" / "B.x86_64")
    with pytest.raises(EnvironmentStartError, match="several programs in .*: A.x86_64, B.x86_64; name one"):
        find_player(tmp_path / "other")


def test_a_missing_program_or_one_without_permission_is_reported(tmp_path):
    with pytest.raises(EnvironmentStartError, match="there is no player at .*nothing: give the path of a build"):
        find_player(tmp_path / "nothing")
    if os.name == "posix":
        put(tmp_path / "Ball").chmod(0o644)
        with pytest.raises(EnvironmentStartError, match="Ball is not executable: run chmod"):
            find_player(tmp_path / "Ball")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk here")
@pytest.mark.parametrize("log", ["/dev/full", "/nowhere/log"])
def test_what_a_player_prints_is_read_if_it_cannot_be_written(log):
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as output:
        os.write(writer, b"first\nlast\n")
        os.close(writer)
        tail = bytearray()
        watchdog.read_output(output, tail, log)
    assert watchdog.last_lines(bytes(tail)) == "first | last"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_that_is_taken_is_reported_with_its_holder(host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        try:
            other.bind((host, 0))
        except OSError:
            pytest.skip("there is no such network here")
        port = other.getsockname()[1]
        other.listen()
        if ":" not in host:
            with pytest.raises(EnvironmentStartError, match=f"^{port} is taken by .*: end it, or take another$"):
                ports.check_ports([port], "take another")
        if sys.platform == "linux":  # other systems do not report it
            assert ports.describe_holder(port).endswith(f"(process {os.getpid()})")
    assert ports.check_ports([port], "") == f"{port} is free"
    assert ports.describe_holder(port) == "another program"


def test_a_port_beyond_the_last_is_an_error():
    with pytest.raises(EnvironmentStartError, match="^65539 is not a valid port, the largest is 65535: take another$"):
        ports.check_ports(range(65530, 65540), "take another")


def test_the_default_ports_are_checked(monkeypatch):
    checked = []
    monkeypatch.setattr(ports, "is_taken", lambda port: checked.append(port) or False)
    checks = UnityAdapter.list_start_checks(None)
    assert [check.name for check in checks] == ["port of the Unity editor", "ports of players", "handshake"]
    for check in checks[:2]:
        assert "free" in check.run()
    assert checked == [5004, *range(5005, 5013)]
