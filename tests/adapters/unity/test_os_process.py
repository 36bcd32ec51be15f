"""A build is found by the names that people give it, and a process that ends says how."""

import os
import sys

import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.unity.os_process import describe_exit, find_player


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
def test_a_build_is_found(tmp_path, monkeypatch, platform, built, given):
    monkeypatch.setattr(sys, "platform", platform)
    program = put(tmp_path / built)
    if platform != "darwin":  # what lies beside it there
        put(program.with_name("UnityCrashHandler64.exe" if platform == "win32" else "UnityPlayer.so"))
    assert find_player(tmp_path / given) == program


def test_one_of_several_is_the_one_of_the_folders_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    put(tmp_path / "Ball" / "Server.x86_64")
    own = put(tmp_path / "Ball" / "Ball.x86_64")
    assert find_player(tmp_path / "Ball") == own
    put(tmp_path / "other" / "A.x86_64")
    put(tmp_path / "other" / "B.x86_64")
    with pytest.raises(EnvironmentStartError, match="several programs in .*: A.x86_64, B.x86_64; name one"):
        find_player(tmp_path / "other")


def test_what_is_not_there_or_may_not_be_run_is_told(tmp_path):
    with pytest.raises(EnvironmentStartError, match="there is no player at .*nothing: give the path of a build"):
        find_player(tmp_path / "nothing")
    if os.name == "posix":
        put(tmp_path / "Ball").chmod(0o644)
        with pytest.raises(EnvironmentStartError, match="Ball may not be run: chmod"):
            find_player(tmp_path / "Ball")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "left by itself"),
        (3, "ended with exit code 3"),
        (0xC0000005, "ended with exit code 3221225477 (0xc0000005)"),
        (-9, "crashed with signal SIGKILL"),
        (-200, "crashed with signal 200"),
    ],
)
def test_an_exit_code_is_a_line(code, line):
    assert describe_exit(code) == line
