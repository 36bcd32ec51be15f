"""`--export` of a trained run of unity/3dball with 2 x 128 units: seconds of the command, and size of the file."""

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

from measure import machine

ROOT = Path(__file__).resolve().parents[1]
NN = """
from algorithm.networks import Blueprint, Mlp, Vector

blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, policy=Mlp(128, 128), critic=Mlp(128, 128))
"""


def main() -> None:
    """Print one line for each opset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="decisions that are trained before")
    parser.add_argument("--times", type=int, default=5, help="exports of each opset")
    options = parser.parse_args()
    print(machine())
    print("| opset | seconds of the command | its CPU seconds | of which the file itself takes | kB | parity |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as place:
        train(Path(place), options.steps)
        for opset, flags in ((15, []), (9, ["--barracuda"])):
            runs = [export(place, flags) for _ in range(options.times)]
            seconds, cpu_seconds, exports = zip(*runs, strict=True)
            within = [one["seconds"] for one in exports]
            print(
                f"| {opset} | {shown(seconds)} | {shown(cpu_seconds)} | {shown(within)} "
                f"| {exports[0]['size'] / 1000:.1f} | {exports[0]['parity']:.1g} |"
            )


def train(place: Path, steps: int) -> None:
    """A run of the folder unity/3dball, on the scripted player of the tests, with the network above."""
    sys.path.insert(0, str(ROOT))
    from tests.unity_player.launcher import make_player

    folder = place / "envs" / "unity" / "3dball"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text((ROOT / "envs" / "unity" / "3dball" / "config.yaml").read_text())
    (folder / "nn.py").write_text(NN)
    player = f"base_config.unity_args.build_path={make_player(place, 'balance_ball')}"
    command(place, "--max_step", str(steps), "--set", player)


def export(place: str | Path, flags: list[str]) -> tuple[float, float, dict]:
    """Seconds and CPU seconds of one command, and what it tells of the file."""
    begin, cpu = time.perf_counter(), os.times()
    told = command(place, "--export", "--json", *flags)
    after = os.times()
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return time.perf_counter() - begin, used, json.loads(told)["exports"][0]


def command(place: str | Path, *arguments: str) -> str:
    """What main.py prints, in a process of its own."""
    line = [sys.executable, str(ROOT / "main.py"), "unity/3dball", "-n", "a", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def shown(values: Sequence[float]) -> str:
    """Median and range."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} [{ordered[0]:.2f} - {ordered[-1]:.2f}]"


if __name__ == "__main__":
    main()
