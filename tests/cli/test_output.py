"""Lines in a terminal are broken between words; commands stay in one piece."""

import os
import pty
import subprocess
import sys

import pytest

from algorithm.cli.output import wrap_words

COMMAND = "python main.py gym/cartpole -n first --resume"


@pytest.mark.parametrize(
    ("line", "width", "lines"),
    [
        ("goal reached after 12 steps", None, ["goal reached after 12 steps"]),
        ("goal reached after 12 steps", 27, ["goal reached after 12 steps"]),
        ("goal reached after 12 steps", 26, ["goal reached after 12", "steps"]),
        ("curve:      runs/a/b/curve.png", 20, ["curve:", "runs/a/b/curve.png"]),
        ("curve:      runs/a/b/curve.png now", 10, ["curve:", "runs/a/b/curve.png", "now"]),
        (f"saved; resume with: {COMMAND}", 30, ["saved; resume with:", COMMAND]),
        (f"saved in runs/a; resume with: {COMMAND}", 20, ["saved in runs/a;", "resume with:", COMMAND]),
        ("", 5, [""]),
    ],
)
def test_words_and_commands_are_not_broken(line, width, lines, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert wrap_words(line, width).split("\n") == lines


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize("call", ["output.log(text)", "output.fail(text, ValueError(), False)"])
def test_a_terminal_gets_whole_words_and_a_log_file_the_whole_line(call, tmp_path):
    text = "the evaluation at 1,000 env steps has a mean return of 12.5 over 20 episodes"
    program = f"""
from pathlib import Path
from algorithm.cli.output import Output
output, text = Output(False), {text!r}
output.log_to_file(Path("log.txt"))
{call}
"""
    terminal, end = pty.openpty()
    variables = {**os.environ, "COLUMNS": "40", "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, stdout=end, stderr=end, check=True)
    os.close(end)
    written = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert written == ["the evaluation at 1,000 env steps has a", "mean return of 12.5 over 20 episodes"]
    assert text in (tmp_path / "log.txt").read_text()
