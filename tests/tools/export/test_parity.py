"""Differences between a file and its agent are detected."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from algorithm.networks import Blueprint, Lstm, Mlp
from algorithm.specs import ObsSpec
from algorithm.tools.export.export import export_role
from algorithm.tools.export.parity import ParityCheck, sample_masks, sample_observations
from algorithm.tools.export.signature import Signature
from tests.tools.export.exported_agents import ACTIONS, NETS, agent_of, role_of


def exported(net: str, action: str, into):
    """Return an agent, its role and signature, and the model of its file."""
    specs, blueprint = NETS[net]
    role = role_of(specs, ACTIONS[action])
    agent = agent_of(role, blueprint)
    path = export_role(agent, "a", role, 0, into).path
    return agent, role, Signature.of(role, agent.state_size), onnx.load(path)


def change(proto: onnx.ModelProto, name: str, function) -> None:
    """Change the values of the initializer whose name has this end."""
    (tensor,) = (one for one in proto.graph.initializer if one.name.endswith(name))
    tensor.CopyFrom(numpy_helper.from_array(function(numpy_helper.to_array(tensor)).astype(np.float32), tensor.name))


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("continuous", "deterministic_continuous_actions differs"),
        ("discrete", "deterministic_discrete_actions differs"),
    ],
)
def test_different_weights_are_detected(action, expected, tmp_path):
    agent, role, signature, proto = exported("mlp", action, tmp_path)
    assert ParityCheck(agent, role, signature, proto.SerializeToString()).violations == []
    change(proto, "heads.0.linear.weight", np.negative)
    found = ParityCheck(agent, role, signature, proto.SerializeToString())
    assert [violation.startswith(expected) for violation in found.violations] == [True]


def test_a_different_memory_is_detected(tmp_path):
    agent, role, signature, proto = exported("lstm", "continuous", tmp_path)
    change(proto, "recurrent.weight", lambda weight: 1.01 * weight)
    found = ParityCheck(agent, role, signature, proto.SerializeToString())
    assert any(violation.startswith("recurrent_out differs") for violation in found.violations)
    assert found.error > 1e-4


def test_a_memory_that_drifts_is_detected_within_twenty_steps(tmp_path):
    """With an empty memory, the first step does not depend on this weight."""
    role = role_of({"obs": ObsSpec((3,))}, ACTIONS["continuous"])
    agent = agent_of(role, Blueprint(body=Mlp(4), memory=Lstm(3)))
    signature = Signature.of(role, agent.state_size)
    proto = onnx.load(export_role(agent, "a", role, 0, tmp_path).path)
    change(proto, "recurrent.weight", lambda weight: weight + 0.01)
    found = ParityCheck(agent, role, signature, proto.SerializeToString())
    assert found.violations


def test_a_file_that_ignores_masks_is_detected(tmp_path):
    agent, role, signature, proto = exported("mlp", "multi-discrete", tmp_path)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and numpy_helper.to_array(attribute.t) == np.float32(1e8):
                attribute.t.CopyFrom(numpy_helper.from_array(np.float32(0)))
    found = ParityCheck(agent, role, signature, proto.SerializeToString())
    for branch in range(2):
        assert any(f"a masked action of branch {branch}" in violation for violation in found.violations)


def test_random_observations_match_the_specs():
    rng = np.random.default_rng(0)
    specs = {
        "image": ObsSpec((1, 4, 4), "uint8", high=255.0),
        "choice": ObsSpec((5,), "uint8", env_shape=(2,), n_values=(2, 3)),
        "vector": ObsSpec((2,)),
    }
    role = role_of(specs, ACTIONS["multi-discrete"])
    obs = sample_observations(role, rng, 200)
    assert {name: value.shape[1:] for name, value in obs.items()} == {n: s.shape for n, s in role.obs_specs.items()}
    assert {name: str(value.dtype) for name, value in obs.items()} == {n: s.dtype for n, s in role.obs_specs.items()}
    assert obs["image"].max() > 200
    np.testing.assert_array_equal(obs["choice"].sum(1), 2)
    masks = sample_masks((3, 2), rng, 500)
    assert masks[:, :3].any(1).all() and masks[:, 3:].any(1).all() and masks.mean() < 0.9
