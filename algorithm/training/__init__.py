"""Training, from a tick of the environments to a step of the optimizers.

In the order of a tick: `actor` (decisions) with `sanitize`, `rollout_buffer` and `episodes`; `batch_scheduler` (what is
learned from); `learner` with `rewards` and `optimizers`; `divergence`; `monitor` (what is due after a tick) with
`progress`, `evaluator`, `reporter` and `metrics`. `components` holds the parts of each role and the timer; the loop is
in `processes.fleet`.
"""
