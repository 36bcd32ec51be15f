"""CPU time of a CartPole run outside training, without `import torch`, relative to training.

Each run, and each `import torch`, is a separate process. Training is the loop that acts and learns, with its
evaluations and checkpoints.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

MAIN = Path(__file__).resolve().parents[1] / "main.py"
THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
MAX_SHARE = 0.35  # of the training time
MAX_LIST_SECONDS = 0.4  # CPU seconds of list
# Runs main.py, and writes the CPU seconds of its training loop to the file `training`.
TIMED = """
import runpy, sys, time
from importlib.machinery import PathFinder

class Timed:
    def find_spec(self, name, path=None, target=None):
        if name == "algorithm.training.local":
            spec = PathFinder.find_spec(name, path)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: load(module) or time_loop(module.LocalRuntime)
            return spec

def time_loop(runtime):
    run = runtime.run
    def timed(*parts):
        begin = time.process_time()
        try:
            run(*parts)
        finally:
            with open("training", "w") as file:
                print(time.process_time() - begin, file=file)
    runtime.run = timed

sys.meta_path.insert(0, Timed())
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> None:
    """Print the medians of several runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(Path(folder), seed) for seed in range(1000, 1000 + options.runs)]
        list_seconds = [measure_cpu_seconds([str(MAIN), "list"], Path(folder)) for _ in runs]
    import_torch = median(run["import torch"] for run in runs)
    training, whole = (median(run[name] for run in runs) for name in ("training", "whole run"))
    shares = [(run["whole run"] - run["training"] - run["import torch"]) / run["training"] for run in runs]
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {options.runs} runs, medians of CPU seconds")
    print(f"whole run {whole:.2f}, training {training:.2f}, import torch {import_torch:.2f}")
    print(f"outside training without the import, relative to training: {median(shares):.2f} (at most {MAX_SHARE})")
    print(f"whole run, relative to training: {median(run['whole run'] / run['training'] for run in runs):.2f}")
    print(f"list: {median(list_seconds):.2f} (at most {MAX_LIST_SECONDS})")


def measure(folder: Path, seed: int) -> dict[str, float]:
    """Return the CPU seconds of a run, of its training, and of an import of torch right after it."""
    run = ["-c", TIMED, MAIN.as_posix(), "gym/cartpole", "-n", f"seed-{seed}", "--seed", str(seed)]
    whole = measure_cpu_seconds(run, folder)
    return {
        "whole run": whole,
        "training": float((folder / "training").read_text()),
        # `os._exit` leaves out the shutdown of the interpreter.
        "import torch": measure_cpu_seconds(["-c", "import torch, os; os._exit(0)"], folder),
    }


def measure_cpu_seconds(arguments: list[str], folder: Path) -> float:
    """Return the CPU seconds of `python arguments` in a folder, from its start to its exit."""
    before = os.times()
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **THREADS}, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


if __name__ == "__main__":
    main()
