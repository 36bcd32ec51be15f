"""A new estimator is an entry in the table: settings, conditions, checks and agents follow from it.

tests/examples trains ACER with the same estimator.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys

from algorithm.cli import main
from examples import estimator

calls, estimate = [], estimator.estimate
estimator.estimate = lambda *inputs: calls.append(1) or estimate(*inputs)
for case in sys.argv[1:]:
    status = main.main(["gym/cartpole", "-n", "a", "--max-step", "300", "--set", *case.split()])
    print("STATUS", status, len(calls) > 0)
    calls.clear()
"""
NAME = "importance_sampling"
SAC = f"base_config.algorithm=SAC sac_config.estimator={NAME} sac_config.n_step=3"
CASES = {
    f"{SAC} sac_config.sequence_length=4 sac_config.learning_starts=32 sac_config.v_c=1": ("0 True", ""),
    f"acer_config.estimator={NAME} acer_config.rho_clip=2": ("2 False", f"is for estimator vtrace, not for {NAME}"),
    f"acer_config.estimator={NAME} acer_config.critic=state_value": ("2 False", f"{NAME} needs action values"),
    "acer_config.estimator=importance": ("2 False", f"'tree_backup', 'q_lambda' or '{NAME}'"),
}


def test_a_new_estimator_needs_only_an_entry_in_the_table(tmp_path):
    command, environment = [sys.executable, "-c", SCRIPT, *CASES], {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    statuses = [line.removeprefix("STATUS ") for line in done.stdout.splitlines() if line.startswith("STATUS ")]
    assert statuses == [status for status, _ in CASES.values()], done.stderr
    for _, message in CASES.values():
        assert message in done.stdout + done.stderr
