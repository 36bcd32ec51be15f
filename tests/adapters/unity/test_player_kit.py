"""The scripted player works as docs/unity.md describes."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.curriculum import Gaussian, MultiRange, Uniform  # noqa: E402
from algorithm.adapters.unity.scene_statistics import AVERAGE  # noqa: E402
from tests.adapters.unity.played import act, start  # noqa: E402
from tests.unity_player import ball, grid  # noqa: E402
from tests.unity_player.__main__ import TASKS, parse  # noqa: E402
from tests.unity_player.launcher import ROOT  # noqa: E402
from tests.unity_player.scene import Action  # noqa: E402


def play(task, choose, episodes):
    """Return the returns of the first episodes that end, by behavior; `choose(name, News)` acts."""
    returns, running = {}, {}
    news = task.reset()
    while sum(map(len, returns.values())) < episodes:
        actions = {}
        for name, agents in news.items():
            for each in agents:
                key = name, each.agent
                running[key] = running.get(key, 0.0) + each.reward + each.group_reward
                if each.done:
                    returns.setdefault(name, []).append(running.pop(key))
                else:
                    actions.setdefault(name, {})[each.agent] = choose(name, each)
        news = task.step(actions)
    return returns


def make(task, *flags):
    return TASKS[task](np.random.default_rng(0), parse([task, "--mlagents-port", "1", *flags]))


def test_a_controller_balances_the_ball_and_random_actions_do_not():
    def steer(name, news):
        tilt, place, velocity = news.obs[0][[0, 1]], news.obs[0][[2, 4]], news.obs[0][[5, 7]]
        return Action((-0.3 * place - 0.5 * velocity - 4 * tilt).tolist(), [])

    rng = np.random.default_rng(1)
    (best,) = play(make("balance_ball"), steer, 12).values()
    (chance,) = play(make("balance_ball"), lambda name, news: Action(rng.uniform(-1, 1, 2).tolist(), []), 50).values()
    assert best == pytest.approx([20.0] * 12)
    assert -1 < np.mean(chance) < 3


def test_reaching_the_goal_gives_one_and_walls_are_masked():
    task = make("grid", "--size", "10")
    seen = set()

    def walk(name, news):
        row, column = task.cells[news.agent, 0]
        steps = [(row + down, column + right) for down, right in grid.MOVES]
        assert news.mask == [not (0 <= r < grid.CELLS and 0 <= c < grid.CELLS) for r, c in steps]
        named = task.cells[news.agent, 1 + int(news.obs[1].argmax())]
        wrong = task.cells[news.agent, 2 - int(news.obs[1].argmax())]
        far = [
            abs(named - step).sum() + 99 * (masked or (wrong == step).all())
            for step, masked in zip(steps, news.mask, strict=True)
        ]
        best = [move for move, distance in enumerate(far) if distance == min(far)]
        seen.update(best)
        return Action([], [int(task.rng.choice(best))])

    (returns,) = play(task, walk, 40).values()
    assert min(returns) > 0.85 and seen == set(range(5)) - {0}


def test_settings_are_recorded_and_statistics_are_returned(tmp_path):
    engine = {"width": 40, "height": 30, "time_scale": 10.0, "target_frame_rate": -1}
    parameters = {
        "gravity": 2.5,
        "mass": Uniform(1.0, 2.0),
        "wind": Gaussian(0.0, 0.5),
        "size": MultiRange(((0.0, 1.0), (4.0, 5.0))),
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
        assert 0 < value < ball.EDGE and aggregation == AVERAGE


def test_the_example_of_the_guide_plays(tmp_path):
    guide = (ROOT / "docs" / "unity.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", guide, re.DOTALL).group(1), {})


def test_random_faults_happen_and_a_slow_player_sleeps(tmp_path):
    parsed = parse(
        ["grid", "--mlagents-port", "1", "--fault", "crash", "--chance", "0.3", "--slow", "0.02", "-batchmode"]
    )
    assert (parsed.fault, parsed.chance, parsed.slow, parsed.unity) == ("crash", 0.3, 0.02, ["-batchmode"])
    with start(tmp_path, "balance_ball", "--fault", "exit", "--chance", "0.5", "--slow", "0.01") as client:
        with pytest.raises(RuntimeError, match="exit code 3"):
            tick = client.reset()
            for _ in range(200):
                tick = act(client, tick)
