"""A new estimator is an entry in the table: settings, conditions, checks and agents follow from it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: choice, n_envs: 3, max_step: 300, log_every: 100, device: cpu}
  replay_config: {capacity: 900}
acer:
  acer_config: {rollout_length: 8, sequence_length: 12, batch_size: 4, learning_starts: 32}
sac:
  base_config: {algorithm: SAC}
  sac_config: {rollout_length: 8, sequence_length: 12, batch_size: 4, learning_starts: 32, n_step: 3}
"""

SCRIPT = """
import sys

from algorithm.cli import main
from algorithm.returns import ESTIMATORS, Estimator, Targets, retrace


def estimate(inputs, clipping):
    trace = clipping.trace_lambda * inputs.rho.clamp(max=clipping.trace_clip)
    target = retrace(
        inputs.reward, inputs.discount, inputs.valid, inputs.q_taken, inputs.v, trace, clipping.horizon
    )
    calls.append(target.shape)
    return Targets(target, lambda: target)


calls = []
ESTIMATORS["importance_sampling"] = Estimator(
    function="__main__:estimate", needs_action_values=True, clips=("trace_clip",)
)
for number, case in enumerate(sys.argv[1:]):
    variant, *settings = case.split()
    status = main.main(["fake/task", "-c", variant, "-n", f"run{number}", "--set", *settings])
    print("STATUS", status, len(calls) > 0)
    calls.clear()
"""

ACER = "acer acer_config.estimator=importance_sampling"
SAC = "sac sac_config.estimator=importance_sampling"


def test_a_new_estimator_needs_only_an_entry_in_the_table(tmp_path):
    folder = tmp_path / "envs" / "fake" / "task"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    cases = {
        f"{ACER} acer_config.trace_clip=2": ("0 True", ""),
        f"{SAC} sac_config.v_c=1": ("0 True", ""),
        f"{ACER} acer_config.rho_clip=2": ("2 False", "is for estimator vtrace, not for importance_sampling"),
        f"{ACER} acer_config.critic=state_value": ("2 False", "importance_sampling needs action values"),
        "acer acer_config.estimator=importance": ("2 False", "'tree_backup', 'q_lambda' or 'importance_sampling'"),
    }
    command = [sys.executable, "-c", SCRIPT, *cases]
    result = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=300
    )
    statuses = [line.removeprefix("STATUS ") for line in result.stdout.splitlines() if line.startswith("STATUS ")]
    assert statuses == [status for status, _ in cases.values()], result.stderr
    for _, message in cases.values():
        assert message in result.stdout + result.stderr
