"""Seconds of the command export and size of its file, for a trained run of unity/3dball with 2 x 128 units."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measure import describe_setup

ROOT = Path(__file__).resolve().parents[1]
RUN = ("unity/3dball", "-n", "a")
NN = """
from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(128, 128), critic=Mlp(128, 128))
"""


def main() -> None:
    """Print one line for each opset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="env steps of the training")
    parser.add_argument("--times", type=int, default=5, help="number of exports with each opset")
    options = parser.parse_args()
    print(describe_setup())
    print("| opset | seconds of the command | CPU seconds of the command | seconds of the export | kB | parity |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), options.steps)
        for opset, flags in ((15, []), (9, ["--barracuda"])):
            runs = [export(folder, flags) for _ in range(options.times)]
            seconds, cpu_seconds, exports = zip(*runs, strict=True)
            export_seconds = [entry["seconds"] for entry in exports]
            print(
                f"| {opset} | {format_times(seconds)} | {format_times(cpu_seconds)} | {format_times(export_seconds)} "
                f"| {exports[0]['size'] / 1000:.1f} | {exports[0]['parity']:.1g} |"
            )


def train(folder: Path, steps: int) -> None:
    """Train unity/3dball with the network above, on the scripted player of the tests."""
    sys.path.insert(0, str(ROOT))
    from tests.unity_player.launcher import make_player

    source = folder / "envs" / "unity" / "3dball"
    source.mkdir(parents=True)
    (source / "config.yaml").write_text((ROOT / "envs" / "unity" / "3dball" / "config.yaml").read_text())
    (source / "nn.py").write_text(NN)
    player = f"base_config.unity_args.build_path={make_player(folder, 'balance_ball')}"
    run_command(folder, *RUN, "--max_step", str(steps), "--set", player)


def export(folder: str | Path, flags: list[str]) -> tuple[float, float, dict]:
    """Export the run. Return the seconds and CPU seconds of the command, and its JSON entry of the file."""
    begin, before = time.perf_counter(), os.times()
    output = run_command(folder, "export", *RUN, "--json", *flags)
    after = os.times()
    cpu_seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, cpu_seconds, json.loads(output)["exports"][0]


def run_command(folder: str | Path, *arguments: str) -> str:
    """Run main.py in a subprocess. Return its standard output."""
    line = [sys.executable, str(ROOT / "main.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(line, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return process.stdout


def format_times(values: Sequence[float]) -> str:
    """Return the median and the range as text."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} [{ordered[0]:.2f} - {ordered[-1]:.2f}]"


if __name__ == "__main__":
    main()
