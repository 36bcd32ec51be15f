"""Names of ML-Agents: of the roles and agents of behaviors, and of metrics."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from algorithm.adapters.scenes.scene import UNFIT_FOR_FILES
from algorithm.program import DEFAULT_ROLE

TEAM_SUFFIX = re.compile(r"\?team=(\d+)$")
# Name in ML-Agents: a regular expression of the metric, and the factor between the two.
METRICS = {
    "Environment/Cumulative Reward": (r"rollout/return", 1.0),
    "Environment/Episode Length": (r"rollout/length", 1.0),
    "Policy/Extrinsic Reward": (r"rollout/return", 1.0),
    "Policy/Extrinsic Value Estimate": (r"train/value", 1.0),
    "Policy/Entropy": (r"train/entropy", 1.0),
    "Policy/Learning Rate": (r"train/(?:acer|actor_critic|policy|reactor)_learning_rate", 1.0),
    "Policy/Curiosity Reward": (r"train/curiosity_reward", 1.0),
    "Losses/Policy Loss": (r"train/policy_objective", -1.0),
    "Losses/Value Loss": (r"train/critic_loss", 2.0),  # the squared error, not half of it
}
SCENE, LESSON = "scene/", "lesson/"  # what the names of statistics start with, and then those of lessons
LESSON_NAME = "Environment/Lesson Number/"


def split_team(behavior: str) -> tuple[str, str]:
    """Return `Name` and `` for `Name?team=0`, `Name` and `-team1` for `Name?team=1`."""
    team = TEAM_SUFFIX.search(behavior)
    return TEAM_SUFFIX.sub("", behavior), f"-team{team[1]}" if team and int(team[1]) else ""


def get_role_name(behavior: str) -> str:
    """Return the name of the role of a behavior, with `_` for characters unfit for a file name."""
    name, team = split_team(behavior)
    return UNFIT_FOR_FILES.sub("_", name) + team


def rename_metrics(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return metrics by their names in ML-Agents, for each role; statistics of the scene belong to all roles."""
    renamed: dict[str, dict[str, float]] = defaultdict(dict)
    for name, (expression, factor) in METRICS.items():
        for metric, value in values.items():
            if match := re.fullmatch(rf"{expression}(?:/(?P<role>.*))?", metric):
                renamed[match["role"] or DEFAULT_ROLE][name] = factor * value
    of_scene = {
        re.sub(f"^{LESSON}", LESSON_NAME, metric.removeprefix(SCENE)): value
        for metric, value in values.items()
        if metric.startswith(SCENE)
    }
    return {role: {**metrics, **of_scene} for role, metrics in renamed.items()}
