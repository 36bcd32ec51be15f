"""The scripted player works as docs/unity.md describes."""

import json
import re
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.curriculum import Gaussian, MultiRange, Uniform  # noqa: E402
from algorithm.adapters.scenes.scene import AVERAGE  # noqa: E402
from tests.adapters.unity.played import act, start  # noqa: E402
from tests.unity_player import tasks  # noqa: E402
from tests.unity_player.__main__ import TASKS, parse  # noqa: E402
from tests.unity_player.launcher import ROOT  # noqa: E402
from tests.unity_player.scene import Action  # noqa: E402


def play(name, choose, *flags, episodes):
    """Return the task, and the returns of the first episodes that end; `choose(task, News)` acts."""
    task = TASKS[name](np.random.default_rng(0), parse([name, "--mlagents-port", "1", *flags]))
    ((behavior, agents),) = task.reset().items()
    returns, running = [], defaultdict(float)
    while len(returns) < episodes:
        for each in agents:
            running[each.agent] += each.reward
            if each.done:
                returns.append(running.pop(each.agent))
        actions = {each.agent: choose(task, each) for each in agents if not each.done}
        agents = task.step({behavior: actions})[behavior]
    return returns


def test_a_controller_balances_the_ball_and_random_actions_do_not():
    def steer(task, news):
        tilt, place, velocity = news.obs[0][[0, 1]], news.obs[0][[2, 4]], news.obs[0][[5, 7]]
        return Action((-0.3 * place - 0.5 * velocity - 4 * tilt).tolist(), [])

    rng = np.random.default_rng(1)
    chance = play("balance_ball", lambda task, news: Action(rng.uniform(-1, 1, 2).tolist(), []), episodes=50)
    assert play("balance_ball", steer, episodes=12) == pytest.approx([20.0] * 12)
    assert -1 < np.mean(chance) < 3


def test_reaching_the_goal_gives_one_and_walls_are_masked():
    def walk(task, news):
        cell, *signs = task.cells[news.agent]
        named, wrong = signs if news.obs[1].argmax() == 0 else reversed(signs)
        steps = cell + np.array(tasks.MOVES)
        assert news.mask == ((steps < 0) | (steps >= tasks.CELLS)).any(1).tolist()
        far = np.abs(named - steps).sum(1) + 99 * (np.array(news.mask) | (wrong == steps).all(1))
        return Action([], [int(far.argmin())])

    assert min(play("grid", walk, "--size", "10", episodes=40)) > 0.85


def test_settings_are_recorded_and_statistics_are_returned(tmp_path):
    engine = {"width": 40, "height": 30, "time_scale": 10.0, "target_frame_rate": -1}
    parameters = {
        "gravity": 2.5,
        "mass": Uniform(1.0, 2.0),
        "wind": Gaussian(0.0, 0.5),
        "size": MultiRange([[0.0, 1.0], [4.0, 5.0]]),
    }
    record = tmp_path / "recorded.jsonl"
    how = {"engine": engine, "parameters": parameters, "seed": 3, "arguments": ["-nographics"]}
    with start(tmp_path, "balance_ball", "--record", str(record), **how) as client:
        statistics = [client.reset().statistics]
        statistics.append(act(client, client.reset()).statistics)
    recorded = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert recorded[0]["arguments"][-1] == "-nographics"
    assert recorded[1:-2] == [
        {"engine": ["resolution", 40, 30]},
        {"engine": ["time_scale", 10.0]},
        {"engine": ["target_frame_rate", -1]},
        {"number": ["gravity", 2.5]},
        {"uniform": ["mass", 3, 1.0, 2.0]},
        {"gaussian": ["wind", 3, 0.0, 0.5]},
        {"multirange": ["size", 3, 0.0, 1.0, 4.0, 5.0]},
    ]
    drawn = recorded[-1]["reset"]
    assert drawn["gravity"] == 2.5 and 1 <= drawn["mass"] <= 2 and (0 <= drawn["size"] <= 1 or 4 <= drawn["size"] <= 5)
    for ((value, aggregation),) in (tick["Ball/Distance"] for tick in statistics):
        assert 0 < value < tasks.EDGE and aggregation == AVERAGE


def test_the_example_of_the_guide_plays(tmp_path):
    guide = (ROOT / "docs" / "unity.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "UnityClient" in code]
    exec(example, {})


def test_random_faults_happen_and_a_slow_player_sleeps(tmp_path):
    parsed = parse("grid --mlagents-port 1 --fault crash --chance 0.3 --slow 0.02 -batchmode".split())
    assert (parsed.fault, parsed.chance, parsed.slow, parsed.unity) == ("crash", 0.3, 0.02, ["-batchmode"])
    with start(tmp_path, "balance_ball", "--fault", "exit", "--chance", "0.5", "--slow", "0.01") as client:
        with pytest.raises(RuntimeError, match="exit code 3"):
            tick = client.reset()
            for _ in range(200):
                tick = act(client, tick)
