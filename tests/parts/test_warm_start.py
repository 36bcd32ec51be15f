"""A new run starts with the parameters of another run, where role, name and shape are the same."""

from __future__ import annotations

import re

import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.warm_start import WarmStart
from tests.builders import make_role
from tests.checkpointing.test_resume import new_run, train_run

pytestmark = pytest.mark.usefixtures("registered_fakes")
NORMALIZED = "batch statistics, frame stack, gru and curiosity"
SLOW = {"acer_config": {"learning_rate": 1e-12, "reward_normalization": None, "trust_region": "off"}}


def start(folder: RunFolder, source: str, role=None, name: str = "agent") -> tuple[dict, list[str]]:
    """Return the first parameters of a role of a run that starts from another run, and the lines of it."""
    lines: list[str] = []
    warm_start = WarmStart(source, folder.path.parent, lines.append)
    builder = ComponentsBuilder(folder.load_settings(), folder, None, lines.append, initialize=warm_start)
    learner = builder(name, role or RunFolder(folder.path.with_name("source")).read_roles()["agent"]).learner
    return learner.parameters.state(), [line for line in lines if "arameters" in line]


@pytest.mark.parametrize("kind", ["probe", NORMALIZED, "sac, hybrid and recurrent", "noisy layers"])
def test_all_parameters_and_statistics_of_the_same_agent_are_loaded_and_targets_follow(tmp_path, kind):
    source = train_run(new_run(tmp_path, "source", kind))
    saved, name = source.weights("agent"), f"source@{int(source.folder.name)}"
    state, lines = start(new_run(tmp_path, "new", kind), name)
    of_rewards = ("returns", "auxiliary/curiosity")
    for part, vectors in state.items():
        followed = {name for name in vectors if part == "target_networks" or name.startswith("target/")}
        for name in vectors.keys() - followed - {*of_rewards}:
            assert torch.equal(vectors[name], saved[part][name]), (part, name)
    assert not state["statistics"]["returns"].any()
    loaded = torch.cat([vector for name, vector in state["parameters"].items() if name not in of_rewards])
    for target in state["target_networks"].values():  # a copy of its source, a part of these
        starts = (loaded == target[0]).nonzero().flatten().tolist()
        assert any(torch.equal(loaded[start : start + len(target)], target) for start in starts)
    assert re.fullmatch(r"parameters: [\d,]+ values are from .*/source@\d+", lines[0]) and len(lines) == 1


def test_parameters_of_another_shape_start_anew_and_are_listed(tmp_path):
    train_run(new_run(tmp_path, "source", "probe"))
    folder, path = new_run(tmp_path, "new", "probe"), str(tmp_path / "runs/fake/task/source")
    _, lines = start(folder, path, make_role(size=1, actions=5))
    assert re.fullmatch(r"parameters: 8 values are from .*/source@\d+", lines[0])  # the biases of the first layer
    shapes = "torso.body.layers.0.weight [8, 1], there [8, 3], acer.heads.linear.weight [10, 8], there [4, 8]"
    assert "new, since" in lines[1] and shapes in lines[1]


def test_another_role_takes_the_only_role_of_the_run_and_its_own_one_if_it_is_there(tmp_path):
    train_run(new_run(tmp_path, "source", "probe"))
    role = RunFolder(tmp_path / "runs/fake/task/source").read_roles()["agent"]
    _, lines = start(new_run(tmp_path, "one", "probe"), "source", role, "striker")
    assert lines[0].startswith("parameters of striker:")
    train_run(new_run(tmp_path, "many", "several roles, one of them late"))
    _, lines = start(new_run(tmp_path, "other", "probe"), "many", role, "striker")
    assert lines == [lines[0]] and "has no role striker, which starts with new parameters" in lines[0]


@pytest.mark.parametrize("runtime", ["LOCAL", "WORKERS"])
def test_a_run_starts_from_another_one_and_a_resumed_one_does_not_need_it(tmp_path, runtime, prepared_workers):
    source = train_run(new_run(tmp_path, "source", "probe"))
    folder = new_run(tmp_path, "new", "probe", runtime=runtime, n_workers=2, initialize_from="source")
    tree = folder.load_settings().tree
    folder.record_settings(resolve([("test", tree), ("test", SLOW)]).tree, 0)
    saved = source.weights("agent")["parameters"]
    weights = train_run(folder).weights("agent")["parameters"]
    for name, vector in weights.items():
        torch.testing.assert_close(vector, saved[name], atol=1e-6, rtol=1e-6)
    RunFolder(source.folder.parents[1]).remove()
    train_run(folder)


def test_a_run_that_does_not_exist_or_of_which_nothing_fits_is_one_line(tmp_path):
    train_run(new_run(tmp_path, "source", "probe"))
    folder = new_run(tmp_path, "new", "sac, hybrid and recurrent")
    for source, message in (
        ("none", "base_config.initialize_from none: there is no such run; give its folder"),
        ("source@7", "base_config.initialize_from source@7: 7: there is no such checkpoint; .* has 38, 74"),
        ("@", "there is no such run"),
        ("source", r"initialize_from: no parameter of .*source@\d+ fits agent; it needs "),
    ):
        with pytest.raises(UserError, match=message):
            start(folder, source)
