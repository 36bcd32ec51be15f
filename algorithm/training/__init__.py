"""Training, from a tick of the environments to a step of the optimizers.

In the order of a tick: `actor` (decisions) with `sanitize`, `rollout_buffer` and `episodes`; `batch_scheduler` (replay);
`learner` with `rewards` and `optimizers`; `divergence`; `history`, `evaluator`, `reporter` and `monitor` (what is due
after a tick). `components` connects them for each role. `runtimes` has the loop.
"""
