"""A new estimator: per-decision importance sampling (Precup et al. 2000), with bounded traces.

An estimator is one function and one entry in the table `ESTIMATORS`. Its name is then a value of the setting
`estimator` of ACER and SAC; checks and messages follow from what the entry declares. Within the project the entry is in
algorithm/estimators.py; a program adds it before it trains.
"""

from __future__ import annotations

from algorithm import RunResult, train
from algorithm.returns import ESTIMATORS, Estimator, EstimatorInputs, Targets, TraceClipping, retrace


def estimate(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return targets with the trace lambda * min(c, rho), where Retrace has rho^(1/d); tensors are [T, B]."""
    trace = clipping.trace_lambda * inputs.rho.clamp(max=clipping.trace_clip)
    q_target = retrace(inputs.reward, inputs.discount, inputs.valid, inputs.q_taken, inputs.v, trace, clipping.horizon)
    # The target of V: the TD error of the taken action, weighted by its truncated ratio.
    return Targets(q_target, lambda: inputs.v[:-1] + inputs.rho.clamp(max=1) * (q_target - inputs.q_taken))


ESTIMATORS["importance_sampling"] = Estimator(
    function=f"{__name__}:estimate", needs_action_values=True, clips=("trace_clip",)
)


def run(max_step: int = 50_000) -> RunResult:
    """Train ACER with this estimator in CartPole and return the result."""
    settings = {
        "acer_config": {"estimator": "importance_sampling", "trace_clip": 2.0},
        "base_config.max_step": max_step,
    }
    return train("gym/cartpole", settings=settings, log=print)


if __name__ == "__main__":
    run()
