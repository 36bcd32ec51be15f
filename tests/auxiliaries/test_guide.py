"""The page on auxiliaries has every setting with its default, and its example trains."""

from __future__ import annotations

import re
from dataclasses import asdict

import numpy as np
import pytest

from algorithm.config.registry import AUXILIARIES, find_class
from algorithm.config.yaml_layers import parse_yaml
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_role, random_rollout, update
from tests.guides import DOCS, blocks, read

GUIDE = DOCS / "auxiliaries.md"


@pytest.mark.parametrize("name", AUXILIARIES)
def test_every_setting_of_an_auxiliary_is_in_its_table_with_its_default(name):
    (section,) = re.findall(rf"^## {name}\n(.*?)^## ", read(GUIDE), re.M | re.S)
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", section, re.M)
    assert {key: parse_yaml(default) for key, default, _ in rows} == asdict(find_class("auxiliaries", name).Settings())
    assert len({key for key, _, _ in rows}) == len(rows)


def test_every_auxiliary_has_a_row_in_the_overview():
    overview = read(GUIDE).split("## Common settings")[0]
    assert all(f"[{name}](#{name})" in overview for name in AUXILIARIES)


def test_the_example_of_an_own_auxiliary_trains():
    (code,) = blocks(GUIDE, "python")
    names: dict = {"__name__": __name__}  # dataclasses look their module up by name
    exec(compile(code, "example", "exec"), names)
    auxiliary = names["Norm"](names["NormSettings"](strength=0.5))
    role = make_role()
    learner = Learner(make_acer(role), role, {"norm": auxiliary}, None)
    losses = [update(learner, random_rollout(np.random.default_rng(0))).compute_metrics() for _ in range(40)]
    assert losses[-1]["train/norm_loss"] < losses[0]["train/norm_loss"]
    assert losses[0]["train/norm_reward"] > 0
