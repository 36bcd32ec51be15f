"""Training, watching and using an agent from Python.

The sections below can be pasted into the cells of a notebook. Runs are folders below runs/, as on the
command line: `python main.py list gym/cartpole` shows them, `tensorboard --logdir runs` plots them.
"""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np

from algorithm import Callback, RunResult, TrainedAgent, load, train
from algorithm.training.evaluator import EvaluationResult


class StopWhenGoodEnough(Callback):
    """A callback that records the returns of evaluations, and stops the run at a mean return."""

    def __init__(self, enough: float):
        self.enough = enough
        self.returns: list[float] = []

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> bool:
        # One result for each role; a single-agent environment has one role.
        self.returns += [result.mean for result in results.values()]
        return self.returns[-1] >= self.enough


def make_env() -> gymnasium.Env:
    """Return an environment: an agent can be trained in any function like this one."""
    return gymnasium.make("CartPole-v1", max_episode_steps=200)


def train_agent(max_step: int) -> RunResult:
    """Train an agent; settings are named as in default_config.yaml, as paths or as sections."""
    callback = StopWhenGoodEnough(150)
    result = train(
        make_env,  # or "CartPole-v1", or an environment folder as "gym/cartpole"
        name="cartpole_{time}",
        settings={
            "base_config": {"max_step": max_step, "evaluate_every": max(1, max_step // 10), "seed": 1},
            "acer_config.gamma": 0.98,
        },
        callbacks=[callback],
        log=print,
    )
    print(f"{result.counters.env_steps} env steps, evaluations: {callback.returns}, stopped: {result.stopped}")
    return result


def play_episode(agent: TrainedAgent) -> float:
    """Play one episode and return the sum of its rewards."""
    env, total, ended = make_env(), 0.0, False
    obs, _ = env.reset(seed=0)
    agent.reset()  # an episode starts: networks with a memory begin from zero
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total, ended = total + float(reward), terminated or truncated
    return total


def run(max_step: int = 30_000) -> RunResult:
    """Train an agent, load its best weights and use them."""
    result = train_agent(max_step)
    agent = load(result.folder, disable_sample=True)  # greedy actions
    print(f"return of one episode: {play_episode(agent)}")
    agent.reset()
    print(f"actions of a batch of observations: {agent.act(np.zeros((3, 4), np.float32))}")
    return result


if __name__ == "__main__":
    run()
