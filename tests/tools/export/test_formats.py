"""Formats of exports other than those of torch's older exporter: Sentis 2.6, and programs without Unity."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from algorithm.tools.export.export import export_role  # noqa: E402
from algorithm.tools.export.graph import DYNAMO_OPSET  # noqa: E402
from algorithm.tools.export.plain import export_plain  # noqa: E402
from tests.tools.export.exported_agents import ACTIONS, NETS, agent_of, role_of  # noqa: E402

SLOW = ("entities", "attention, rotary", "frames and lstm", "residual after convolutions")


def agent_for(net, action):
    specs, blueprint = NETS[net]
    role = role_of(specs, ACTIONS[action])
    return agent_of(role, blueprint), role


@pytest.mark.parametrize(
    ("net", "action"),
    [
        ("mlp", "hybrid"),
        *(pytest.param(net, "hybrid", marks=pytest.mark.slow) for net in SLOW),
    ],
)
def test_a_file_for_sentis_2_6_computes_the_same_and_names_no_place_of_this_machine(net, action, tmp_path):
    pytest.importorskip("onnxscript")
    agent, role = agent_for(net, action)
    exported = export_role(agent, "Brain", role, 100, tmp_path, DYNAMO_OPSET)
    assert exported.opset == DYNAMO_OPSET and exported.parity < 1e-4
    model = onnx.load(exported.path)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", DYNAMO_OPSET)]
    assert (
        b"site-packages" not in exported.path.read_bytes()
        and str(Path.home()).encode() not in exported.path.read_bytes()
    )


@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        ("mlp", ["Zeta", "Alpha", "action_mask"]),
        ("lstm", ["Zeta", "Alpha", "action_mask", "memory"]),
        ("convnet", ["Camera", "Speed", "action_mask"]),
    ],
)
def test_a_plain_file_has_the_names_of_observations_and_its_weights_beside_it(net, inputs, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    agent, role = agent_for(net, "hybrid")
    exported = export_plain(agent, "Brain", role, 100, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Brain.onnx", "Brain.safetensors"]
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == inputs == list(exported.inputs)
    outputs = [each.name for each in session.get_outputs()]
    actions = ["continuous_action", "discrete_action"]
    assert set(outputs) == {
        *actions,
        *(f"sampled_{name}" for name in actions),
        *(["next_memory"] if net == "lstm" else []),
    }

    rng = np.random.default_rng(0)
    obs = {name: rng.standard_normal((2, *spec.shape)).astype(spec.dtype) for name, spec in role.obs_specs.items()}
    obs["action_mask"] = np.ones((2, 5), np.uint8)
    memory = np.zeros((2, agent.state_size), np.float32)
    statistics, next_memory = agent.policy.act(obs, memory)
    mode = agent.family.mode(statistics)
    scale = {
        name: spec.high if spec.dtype == "uint8" and len(spec.shape) == 3 else 1
        for name, spec in role.obs_specs.items()
    }
    feed = {each.name: obs.get(each.name) for each in session.get_inputs()}
    feed |= {name: value.astype(np.float32) / scale.get(name, 1) for name, value in feed.items() if value is not None}
    for index, name in enumerate(("Zeta", "Alpha")):
        if name in feed:
            feed[name] = feed[name].reshape(2, *exported.inputs[name][1:]) if index else feed[name]
    if net == "lstm":
        feed["memory"] = memory.reshape(2, 1, -1)
    found = dict(zip(outputs, session.run(None, feed), strict=True))
    np.testing.assert_allclose(found["continuous_action"], agent.family.to_action(mode)[:, :2], atol=1e-4)
    np.testing.assert_array_equal(found["discrete_action"], mode[:, 2:])
    if net == "lstm":
        np.testing.assert_allclose(found["next_memory"].reshape(2, -1), next_memory, atol=1e-4)
    weights = safetensors.load_file(tmp_path / "Brain.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        name: tuple(value.shape) for name, value in agent.policy.state_dict().items()
    }
    metadata = {entry.key: entry.value for entry in onnx.load(exported.path).metadata_props}
    assert metadata["role"] == "Brain" and json.loads(metadata["observations"])
