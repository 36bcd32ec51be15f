"""Training, from a tick of the environments to a step of the optimizers.

In the order of a tick: `actor` (decisions and rollouts) with `invalid_values`; `batch_scheduler` (what is
learned from); `learner` with `rewards` and `optimizers`; `monitor` (what is due after a tick) with `progress`,
`evaluator`, `reporter` and `metrics`. `components` holds the parts of each role, and their updates; the loop is in
`processes.fleet`.
"""
