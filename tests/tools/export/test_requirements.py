"""Each violated rule is reported with its number, and each difference between a file and its agent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from algorithm.networks import Blueprint, Lstm, Mlp
from algorithm.specs import ObsSpec
from algorithm.tools.export.export import export_role
from algorithm.tools.export.parity import ParityCheck, sample_masks, sample_observations
from algorithm.tools.export.requirements import ObservationInput, Signature, find_violations
from tests.tools.export.exported_agents import ACTIONS, NETS, agent_of, export_of, role_of

SENSORS = (
    ObservationInput(name="a", shape=(5,), agent_shape=(5,)),
    ObservationInput(name="b", shape=(3, 2), agent_shape=(6,)),
)
MODE = "deterministic_continuous_actions"
SCENE = Signature(sensors=SENSORS, continuous=2, branches=(3, 2), memory=12)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return files of a hybrid policy with a memory, in opsets 9 and 15."""
    return {opset: export_of("lstm", "hybrid", tmp_path_factory.mktemp(str(opset)), opset).path for opset in (9, 15)}


def port(proto, name):
    """Return an input or output by its name."""
    return next(one for one in (*proto.graph.input, *proto.graph.output) if one.name == name)


def shape(proto, name, *axes):
    """Declare another shape of an input or output."""
    one = port(proto, name)
    kind = one.type.tensor_type.elem_type
    one.CopyFrom(helper.make_tensor_value_info(name, kind, axes))


def kind(proto, name, elem_type):
    port(proto, name).type.tensor_type.elem_type = elem_type


def constant(proto, name, value):
    """Replace an initializer."""
    (old,) = (one for one in proto.graph.initializer if one.name == name)
    old.CopyFrom(numpy_helper.from_array(np.asarray(value), name))


def rename(proto, old, new):
    """Rename an input or output wherever it is used."""
    port(proto, old).name = new
    for node in proto.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def without(proto, name):
    """Remove an output."""
    proto.graph.output.remove(port(proto, name))


def opset(proto, version):
    proto.opset_import[0].version = version


def operator(proto, old, new):
    next(node for node in proto.graph.node if node.op_type == old).op_type = new


def after(proto, name, operator, value=None, **attributes):
    """Compute an output by one more operator, whose second input is a constant."""
    for node in proto.graph.node:
        node.output[:] = [f"{name}_before" if made == name else made for made in node.output]
    constants = [] if value is None else ["a_constant"]
    for constant in constants:
        initializer(proto, constant, value)
    proto.graph.node.append(helper.make_node(operator, [f"{name}_before", *constants], [name], **attributes))


def unused_input(proto, name, *axes):
    proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, axes))


def initializer(proto, name, value):
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def outside(proto):
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def foreign(proto):
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.node[0].domain = "com.microsoft"


def sparse(proto):
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))


def mask_by(proto, value):
    """Replace what is subtracted from the logits of masked actions."""
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and numpy_helper.to_array(attribute.t).ravel()[:1] == np.float32(1e8):
                attribute.t.CopyFrom(numpy_helper.from_array(np.float32(value)))


def divided_by_an_observation(proto):
    """Make an output infinite for zeros only."""
    sums = helper.make_node("ReduceSum", ["recurrent_in"], ["sum"], keepdims=0)
    proto.graph.node.extend([sums, helper.make_node("Div", ["sum", "sum"], ["a_constant"])])
    after(proto, MODE, "Mul")
    proto.graph.node[-1].input.append("a_constant")


def through_identity(proto):
    (old,) = (one for one in proto.graph.initializer if one.name == "memory_size")
    old.name = "memory_size_before"
    proto.graph.node.append(helper.make_node("Identity", ["memory_size_before"], ["memory_size"]))


def another_output(proto):
    node = next(node for node in proto.graph.node if node.op_type == "Tanh")
    proto.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))


def swapped(proto):
    outputs = list(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend([outputs[1], outputs[0], *outputs[2:]])


FLOATS = np.float32
# A part of the violation, the function that damages a correct file, and its arguments.
BROKEN = [
    ("O1: weights are in another file", outside),
    ("O1: operators of the domain com.microsoft", foreign),
    ("O1: onnx.checker rejects", operator, "Gemm", "Relu"),
    ("O2: opset 16", opset, 16),
    ("O2: opset 8", opset, 8),
    ("O3: Sentis does not import the operator Loop", operator, "Tanh", "Loop"),
    ("O4: sparse", sparse),
    ("O4: words is STRING", initializer, "words", np.array(["no"], object)),
    ("O4: nine has 9 dimensions", initializer, "nine", np.ones((1,) * 9, FLOATS)),
    ("I2: obs_0 is missing", rename, "obs_0", "obs_2"),
    ("I2: obs_0 is DOUBLE [batch, 5]; the scene has FLOAT [batch, 5]", kind, "obs_0", TensorProto.DOUBLE),
    ("I2: obs_0 is FLOAT [1, 5]; the scene has FLOAT [batch, 5]", shape, "obs_0", 1, 5),
    ("I2: obs_0 is FLOAT [batch, n];", shape, "obs_0", "batch", "n"),
    ("I2: obs_0 is FLOAT [batch, 1, 1, 1, 5];", shape, "obs_0", "batch", 1, 1, 1, 5),
    ("I2: the file does not run in a batch of 3", after, MODE, "Reshape", np.array([1, 2])),
    ("I3: action_masks is missing; the scene has FLOAT [batch, 5]", rename, "action_masks", "obs_2"),
    ("I3: action_masks is FLOAT [batch, 4];", shape, "action_masks", "batch", 4),
    ("I4: recurrent_in is missing", rename, "recurrent_in", "obs_2"),
    ("I4: recurrent_in is FLOAT [batch, 12];", shape, "recurrent_in", "batch", 12),
    ("C2: memory_size is float32 [1]: 0;", constant, "memory_size", FLOATS([0])),
    ("I5: inputs unknown to the scene: speed", unused_input, "speed", "batch", 1),
    ("I7: deterministic_continuous_actions is not finite", divided_by_an_observation),
    ("holds infinity or NaN; constants must be finite", mask_by, np.inf),
    ("C1: version_number is int64 [1]: 3; it must be float32 [1]: 3", constant, "version_number", np.array([3])),
    ("C1: version_number is float32 [1]: 2;", constant, "version_number", FLOATS([2])),
    ("C1: version_number is float32 []: 3", constant, "version_number", FLOATS(3)),
    ("C6: the outputs are memory_size,", without, "version_number"),
    ("C2: memory_size is float32 [1]: 10; it must be float32 [1]: 12", constant, "memory_size", FLOATS([10])),
    ("_shape is float32 [1]: 3; it must be float32 [1]: 2", constant, "continuous_action_output_shape", FLOATS([3])),
    ("C3: continuous_actions reaches 3", after, "continuous_actions", "Mul", FLOATS(3)),
    (
        "C4: discrete_action_output_shape is float32 [1, 3]: 3, 2, 2; it must be float32 [1, 2]: 3, 2",
        *(constant, "discrete_action_output_shape", FLOATS([[3, 2, 2]])),
    ),
    ("C4: discrete_action_output_shape is int64", constant, "discrete_action_output_shape", np.array([[3, 2]])),
    ("C4: discrete_actions is FLOAT", kind, "discrete_actions", TensorProto.FLOAT),
    ("C4: deterministic_discrete_actions ranges from", after, "deterministic_discrete_actions", "Add", np.int64(7)),
    ("C5: recurrent_out is FLOAT [batch, 12]; the scene has FLOAT [batch, 1, 12]", shape, "recurrent_out", "batch", 12),
    ("C5: recurrent_out is missing", without, "recurrent_out"),
    ("C4: deterministic_discrete_actions is missing", without, "deterministic_discrete_actions"),
    ("C6: the outputs are version_number", another_output),
    ("C6: the outputs are memory_size, version_number", swapped),
    ("C8: memory_size is not an initializer", through_identity),
]


@pytest.mark.parametrize(
    ("expected", "damage", "arguments"),
    [(expected, damage, arguments) for expected, damage, *arguments in BROKEN],
    ids=[f"{row[0]}-{number}" for number, row in enumerate(BROKEN)],
)
def test_a_violation_is_reported(expected, damage, arguments, good, tmp_path):
    proto = onnx.load(good[15])
    damage(proto, *arguments)
    path = tmp_path / "Brain.onnx"
    path.write_bytes(proto.SerializeToString())
    found = find_violations(path, SCENE, 15)
    assert any(expected in violation for violation in found), found
    assert all(violation[0] in "OICS" and violation[1].isdigit() for violation in found)


def test_a_correct_file_has_no_violations(good):
    for opset, path in good.items():
        assert find_violations(path, SCENE, opset) == []


def test_a_file_that_is_not_a_model_is_a_violation(tmp_path):
    for content in (b"", b"not a model at all"):
        path = tmp_path / "a.onnx"
        path.write_bytes(content)
        assert find_violations(path, SCENE, 15)[0].startswith("O")
    assert find_violations(tmp_path / "nothing.onnx", SCENE, 15)[0].startswith("O1: nothing.onnx cannot be read")


def test_barracuda_imports_fewer_operators(good, tmp_path):
    proto = onnx.load(good[9])
    operator(proto, "Tanh", "Erf")
    path = tmp_path / "a.onnx"
    path.write_bytes(proto.SerializeToString())
    assert "O3: Barracuda does not import the operator Erf" in find_violations(path, SCENE, 9)
    assert find_violations(good[15], SCENE, 9) == ["O2: opset 15 instead of 9"]


def test_an_observation_that_no_sensor_has_is_a_violation(good):
    for axes in ((), (2, 0), (2, 2, 2, 2)):
        scene = Signature(**{**vars(SCENE), "sensors": (ObservationInput(name="a", shape=axes, agent_shape=(5,)),)})
        assert f"I2: obs_0 {['batch', *axes]}; Unity has" in " ".join(find_violations(good[15], scene, 15))


def test_the_file_must_have_the_name_of_its_behavior(good, tmp_path):
    for name in ("Brain.onnx.new", "Brain_team=0?.onnx"):
        path = Path(tmp_path / name)
        path.write_bytes(good[15].read_bytes())
        assert [violation[:2] for violation in find_violations(path, SCENE, 15)] == ["S7"]


def change(proto: onnx.ModelProto, name: str, function) -> None:
    """Change the values of the initializer whose name has this end."""
    (tensor,) = (one for one in proto.graph.initializer if one.name.endswith(name))
    tensor.CopyFrom(numpy_helper.from_array(function(numpy_helper.to_array(tensor)).astype(np.float32), tensor.name))


# Of no memory, the first step does not depend on the recurrent weights: the drift is found within twenty steps.
SMALL = ({"obs": ObsSpec((3,))}, Blueprint(body=Mlp(4), memory=Lstm(3)))


@pytest.mark.parametrize(
    ("net", "action", "damage", "arguments", "expected"),
    [
        (NETS["mlp"], "continuous", change, ("heads.1.weight", np.negative), [f"{MODE} differs"]),
        (NETS["mlp"], "discrete", change, ("heads.1.weight", np.negative), ["deterministic_discrete_actions differs"]),
        (NETS["lstm"], "continuous", change, ("recurrent.weight", lambda x: 1.01 * x), ["recurrent_out differs"]),
        (SMALL, "continuous", change, ("recurrent.weight", lambda x: x + 0.01), ["recurrent_out differs"]),
        (
            NETS["mlp"],
            *("multi-discrete", mask_by, (0,)),
            ["actions chose a masked action of branch 0", "actions chose a masked action of branch 1"],
        ),
    ],
)
def test_a_file_that_differs_from_its_agent_is_detected(net, action, damage, arguments, expected, tmp_path):
    specs, blueprint = net
    role = role_of(specs, ACTIONS[action])
    agent = agent_of(role, blueprint)
    proto = onnx.load(export_role(agent, "a", role, 0, tmp_path).path)
    signature = Signature.of(role, agent.state_size)
    assert ParityCheck(agent, role, signature, proto.SerializeToString()).violations == []
    damage(proto, *arguments)
    found = ParityCheck(agent, role, signature, proto.SerializeToString())
    for text in expected:
        assert any(text in violation for violation in found.violations), found.violations
    assert damage is mask_by or found.error > 1e-4 or action == "discrete"


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
