"""Every kind of agent can be exported to a file that Unity accepts and that computes the same actions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.distributions.gaussian import GaussianFamily
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Gru, Mlp, RandomShift
from algorithm.returns import RewardStream
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.tools.export import export
from algorithm.tools.export.export import export_role, run_round_trip
from algorithm.tools.export.requirements import Signature, make_runner
from algorithm.tools.export.result import ExportFailed
from tests.builders import make_acer, make_ppo, make_reactor, make_sac
from tests.tools.export.exported_agents import ACTIONS, BRANCHES, NETS, agent_of, export_of, role_of

LIKE_DQN = {"discrete_dqn_like": True, "discrete_dqn_epsilon": 0.3}
CATEGORICAL = {"critic": "categorical", "n_step": 1, "v_min": -2.0, "v_max": 2.0}
STREAMS = {"novelty": RewardStream(gamma=0.99, weight=0.5, crosses_episodes=True)}
make_vtrace = partial(make_acer, critic="state_value", estimator="vtrace")
REACTORS = [  # opset and settings
    (9, {"make": make_reactor, "critic": "scalar", "policy_uniform_fraction": 0.2}),
    (15, {"make": make_reactor, "policy_uniform_fraction": 0.0}),
]
EVERY = ("mlp", "convnet", "gru", "lstm", "attention", "frames")
SOME = ("mlp", "lstm", "frames")
# Network, action, opset and settings of an agent.
AGENTS = [
    *product(EVERY, ACTIONS, (9, 15), [{}]),
    *((net, "hybrid", opset, {}) for net in NETS if net not in EVERY for opset in (9, 15)),
    *product(SOME, ACTIONS, (9, 15), [{"make": make_sac}]),
    *product(SOME, ["hybrid"], (9, 15), [{"make": make_sac, "std_max": 2.0}]),
    *product(SOME, ["discrete", "multi-discrete"], (9, 15), [{"make": make_sac, **LIKE_DQN}]),
    *product(["mlp"], ["discrete", "multi-discrete"], (9, 15), [{"make": make_sac, **LIKE_DQN, **CATEGORICAL}]),
    *product(SOME, ACTIONS, [15], [{"make": make_ppo, "std": "state_dependent"}]),  # A2C has the same policy
    *((net, "hybrid", 15, {"make": make_ppo, "streams": STREAMS}) for net in ("mlp", "lstm")),
    *((net, "hybrid", 15, {"make": make_vtrace, "streams": STREAMS}) for net in ("mlp", "lstm")),
    *(
        (net, action, opset, changes)
        for net in (*SOME, *BRANCHES)
        for action in ("discrete", "multi-discrete")
        for opset, changes in REACTORS
    ),
    *product(["mlp"], ["continuous", "hybrid"], [15], [{"tanh_squash": True}, {"std": "state_dependent"}]),
    *product(["mlp"], ["continuous", "hybrid"], [15], [{"std": "learned", "tanh_squash": True}]),
]


class Exported:
    """An agent for playing with its file.

    Attributes:
        agent: The agent.
        signature: The inputs and outputs of the file.
        result: The description of the file.
        run: A function that runs the file.
    """

    def __init__(self, role: Role, blueprint: Blueprint, into, opset: int = 15, **changes):
        self.agent = agent_of(role, blueprint, **changes)
        self.signature = Signature.of(role, self.agent.state_size)
        self.result = export_role(self.agent, "Brain", role, 100, into, opset)
        self.run = make_runner(self.result.path.read_bytes())

    def act(self, **obs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs of the file for some observations, with an empty memory."""
        memory = np.zeros((len(next(iter(obs.values()))), self.signature.memory), np.float32)
        return self.run(self.signature.make_feed(obs, memory))

    def find_statistics(self, **obs: np.ndarray) -> np.ndarray:
        """Return the statistics of the agent's policy for the first of some observations, without a memory."""
        return self.agent.policy.act(obs, np.zeros((len(obs["obs"]), 0), np.float32))[0][0]


ROWS = 20_000
VECTORS = {"obs": ObsSpec((3,))}
SAME = np.tile(np.float32([0.3, -0.2, 0.1]), (ROWS, 1))  # an observation in every row


def test_the_name_of_a_role_does_not_lead_to_another_folder(tmp_path):
    role = role_of(NETS["mlp"][0], ACTIONS["discrete"])
    (into := tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"role '../brain' cannot be exported: its file ../brain.onnx would be in"):
        export_role(agent_of(role, NETS["mlp"][1]), "../brain", role, 100, into)
    assert list(tmp_path.rglob("*")) == [into]


def describe(value) -> str:
    """Return the part of a test's name for an argument, equal in every process."""
    return re.sub(r" at 0x\w+", "", str(value))


def is_slow(net: str, action: str, opset: int, changes: dict) -> bool:
    """Return whether another row has the network, and one the action, with the same opset and a similar agent."""
    is_other = net != "mlp" and action in ("continuous", "multi-discrete")
    return opset == 9 and (changes.get("make") is make_sac or is_other)


@pytest.mark.parametrize(
    ("net", "action", "opset", "changes"),
    [pytest.param(*row, marks=pytest.mark.slow if is_slow(*row) else ()) for row in AGENTS],
    ids=describe,
)
def test_every_agent_passes_the_checker_and_its_file_computes_the_same(net, action, opset, changes, tmp_path):
    exported = export_of(net, action, tmp_path, opset, **changes)
    assert exported.path == tmp_path / "Brain.onnx"
    assert exported.parity < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["Brain.onnx"]
    graph = onnx.shape_inference.infer_shapes(onnx.load(exported.path)).graph
    axes = [axis for value in graph.value_info for axis in value.type.tensor_type.shape.dim]
    assert not any(axis.HasField("dim_value") and axis.dim_value == 0 for axis in axes)  # Unity has no empty tensors


@pytest.mark.parametrize("net", ["convnet", "frames"])
def test_an_augmentation_changes_no_byte_of_the_file(net, tmp_path):
    specs, blueprint = NETS[net]
    role, files = role_of(specs, ACTIONS["hybrid"]), []
    for augmentations in ({}, {"Camera": RandomShift(2)}):
        exported = Exported(role, replace(blueprint, augmentations=augmentations), tmp_path)
        files.append(exported.result.path.read_bytes())
    assert files[0] == files[1]


def test_samples_of_reactor_follow_the_policy_under_a_mask(tmp_path):
    """A half of the policy is uniform over the allowed combinations; within five standard errors."""
    role, mask = role_of(VECTORS, ACTIONS["multi-discrete"]), np.tile(np.uint8([1, 0, 1, 0, 1]), (ROWS, 1))
    exported = Exported(role, Blueprint(body=Mlp(8)), tmp_path, make=make_reactor, policy_uniform_fraction=0.5)
    drawn = exported.act(obs=SAME, action_mask=mask)["discrete_actions"]
    statistics = exported.find_statistics(obs=SAME, action_mask=mask)
    frequency = np.bincount(drawn[:, 0].astype(int) * 2 + drawn[:, 1].astype(int), minlength=6) / ROWS
    assert np.abs(frequency - torch.from_numpy(statistics).softmax(0).numpy()).max() < 5 * 0.5 / np.sqrt(ROWS)
    assert (frequency[[0, 2, 3, 4]] == 0).all()


@pytest.mark.parametrize(("action", "changes"), [("hybrid", {}), ("multi-discrete", LIKE_DQN)], ids=str)
def test_a_fully_masked_branch_does_not_affect_other_branches(action, changes, tmp_path):
    specs, blueprint = NETS["mlp"]
    exported = Exported(role_of(specs, ACTIONS[action]), blueprint, tmp_path, make=make_sac, **changes)
    rng, inputs = np.random.default_rng(0), exported.signature.inputs()
    feed = {name: rng.normal(size=(50, *shape)).astype(np.float32) for name, shape in inputs.items()}
    outputs = exported.run(feed | {"action_masks": np.tile(np.float32([0, 0, 0, 1, 0]), (50, 1))})
    for name in ("discrete_actions", "deterministic_discrete_actions"):
        assert (outputs[name][:, 1] == 0).all()
    assert len(np.unique(outputs["discrete_actions"][:, 0])) > 1


def test_samples_follow_the_policy(tmp_path):
    """Compare means, standard deviations and frequencies of 20,000 samples, within five standard errors."""
    role, std = role_of(VECTORS, ActionSpec(2, (3, 2))), {"std": "state_dependent", "std_init": 0.2, "std_min": 0.1}
    exported = Exported(role, Blueprint(body=Mlp(8)), tmp_path, **std)
    drawn, family = exported.act(obs=SAME), exported.agent.family
    statistics = exported.find_statistics(obs=SAME, action_mask=np.ones((ROWS, 5), np.uint8))
    expected = family.to_action(family.sample(np.tile(statistics, (ROWS, 1)), np.random.default_rng(0)))
    numbers = drawn["continuous_actions"]
    error = 5 * np.sqrt(2) * numbers.std(0) / np.sqrt(ROWS)
    assert (np.abs(numbers.mean(0) - expected[:, :2].mean(0)) < error).all()
    assert (np.abs(numbers.std(0) - expected[:, :2].std(0)) < error).all()
    logits = torch.from_numpy(statistics[4:])
    for branch, probs in enumerate((logits[:3].softmax(0), logits[3:].softmax(0))):
        frequency = np.bincount(drawn["discrete_actions"][:, branch], minlength=len(probs)) / ROWS
        assert np.abs(frequency - probs.numpy()).max() < 5 * 0.5 / np.sqrt(ROWS)


def test_observations_keep_their_order_and_shape_and_images_are_from_0_to_1(tmp_path):
    exported = export_of("convnet", "discrete", tmp_path)
    assert exported.inputs == {"obs_0": ["batch", 3, 9, 8], "obs_1": ["batch", 2], "action_masks": ["batch", 3]}
    exported = export_of("gru", "hybrid", tmp_path)
    assert list(exported.inputs.items())[:2] == [("obs_0", ["batch", 5]), ("obs_1", ["batch", 3, 2])]
    properties = {one.key: one.value for one in onnx.load(exported.path).metadata_props}
    assert properties["observations"].index("Zeta") < properties["observations"].index("Alpha")
    assert properties["env_steps"] == "100"


@pytest.mark.parametrize("net", ["convnet", "frames"])
def test_an_image_from_0_to_1_gives_the_same_actions_as_its_bytes(net, tmp_path):
    specs, blueprint = NETS[net]
    exported, rng = Exported(role_of(specs, ACTIONS["continuous"]), blueprint, tmp_path), np.random.default_rng(0)
    image, speed = rng.integers(256, size=(2, 3, 9, 8), dtype=np.uint8), rng.standard_normal((2, 2), np.float32)
    memory = np.zeros((2, exported.agent.state_size), np.float32)
    statistics, _ = exported.agent.policy.act({"Camera": image, "Speed": speed}, memory)
    expected = exported.agent.family.to_action(exported.agent.family.mode(statistics))
    feed = exported.signature.make_feed({"Camera": image, "Speed": speed}, memory)
    outputs = exported.run(feed | {"obs_0": image / np.float32(255)})
    np.testing.assert_allclose(outputs["deterministic_continuous_actions"], expected, atol=1e-5)
    assert np.abs(expected).min() < 0.9  # not all at a bound, where they would be equal for any observation


@pytest.mark.parametrize("action", ["continuous", "multi-discrete", "hybrid"])
@pytest.mark.parametrize("memory", [None, Gru(4)], ids=str)
@pytest.mark.parametrize("opset", [9, 15])
def test_the_previous_action_is_part_of_the_memory(action, memory, opset, tmp_path):
    spec = ACTIONS[action]
    role = role_of({**VECTORS, PREVIOUS_ACTION: ObsSpec((spec.encoded_size,))}, spec)
    exported = Exported(role, Blueprint(body=Mlp(8), memory=memory), tmp_path, opset)
    inputs, state_size = exported.signature.inputs(), exported.agent.state_size
    assert inputs["recurrent_in"] == (1, state_size + spec.encoded_size)
    outputs = exported.run({name: np.ones((5, *shape), np.float32) for name, shape in inputs.items()})
    parts = [outputs[name] for name in ("continuous_actions", "discrete_actions") if name in outputs]
    remembered = outputs["recurrent_out"][:, 0, state_size:]
    np.testing.assert_array_equal(remembered, spec.encode(np.concatenate(parts, -1).astype(np.float32)))


class Layers(nn.Module):
    """A body of an nn.py."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.linear = 8, nn.Linear(size, 8)

    def forward(self, x):
        return self.linear(x)


class Summed(Layers):
    """A body with an operator that opset 9 does not have."""

    def forward(self, x):
        return super().forward(x).cumsum(-1)


class Recurrent(Layers):
    """A body with torch's GRU, whose operator Unity does not import."""

    def __init__(self, size: int):
        super().__init__(size)
        self.gru = nn.GRU(8, 8)

    def forward(self, x):
        return self.gru(super().forward(x).unsqueeze(0))[0][0]


class Parts(Layers):
    """A body with the forms of functions that this project's networks do not use."""

    def forward(self, x):
        x = super().forward(x)
        a, b = x.unsqueeze(1).expand(-1, 2, -1).chunk(2, 1)
        c, d = torch.cat((a, b), dim=1).flatten(0, 1).unflatten(0, (-1, 2)).split(1, 1)
        e, f, g = x.tensor_split([3, 6], -1)
        same = torch.full_like(x, 1.0, dtype=torch.float32)
        x = torch.addcmul(c.flatten(1), d.flatten(1), same, value=0.5) + torch.cat((e, f, g), -1)
        return torch.lerp(x.to(torch.float64).to(torch.float32), x, 0.5).masked_fill(x < -1, 0.0)


def own(body: type) -> tuple:
    role = role_of(VECTORS, ActionSpec(1))
    agent = make_acer(role, Blueprint(body=body))
    agent.policy.eval()
    return agent, "Brain", role, 0


def test_a_network_that_the_opset_cannot_express_is_rejected_with_the_reason(tmp_path):
    assert export_role(*own(Layers), tmp_path, 9).opset == 9
    assert export_role(*own(Parts), tmp_path, 15).parity < 1e-5
    assert export_role(*own(Summed), tmp_path, 15).opset == 15
    (tmp_path / "Brain.onnx").unlink()
    with pytest.raises(UserError, match="cannot be expressed in opset 9: .*cumsum"):
        export_role(*own(Summed), tmp_path, 9)
    assert list(tmp_path.iterdir()) == []


def test_every_violation_is_reported_and_no_file_remains(tmp_path):
    with pytest.raises(ExportFailed, match="Brain was not exported: ") as caught:
        export_role(*own(Recurrent), tmp_path)
    assert "O3: Sentis does not import the operator GRU" in caught.value.violations
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_keeps_the_previous_file(tmp_path, monkeypatch):
    before = export_of("mlp", "continuous", tmp_path).path.read_bytes()
    monkeypatch.setattr(export, "find_violations", lambda *given: ["O1: broken", "C3: broken too"])
    with pytest.raises(ExportFailed, match="2 violations"):
        export_of("mlp", "continuous", tmp_path)
    assert (tmp_path / "Brain.onnx").read_bytes() == before


def test_weights_are_stored_as_barracuda_reads_them(tmp_path):
    """Test new networks, whose equal biases the exporter would share through Identity."""
    role = role_of(VECTORS, ActionSpec(1))
    agent = make_acer(role, Blueprint(policy=Mlp(8, 8), critic=Mlp(8)))
    graph = onnx.load(export_role(agent, "a", role, 0, tmp_path, 9).path).graph
    products = [node for node in graph.node if node.op_type == "Gemm"]
    assert len(products) == 3
    assert all(set(node.input[1:]) <= {weight.name for weight in graph.initializer} for node in products)
    assert not any(node.op_type == "Identity" for node in graph.node)


def test_an_export_does_not_change_the_agent(tmp_path):
    role = role_of(*NETS["mlp"][:1], ACTIONS["hybrid"])
    agent = agent_of(role, NETS["mlp"][1])
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    places = [parameter.data_ptr() for parameter in agent.policy.parameters()]
    export_role(agent, "a", role, 0, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in agent.policy.state_dict().items())
    assert [parameter.data_ptr() for parameter in agent.policy.parameters()] == places
    assert all(parameter.requires_grad for parameter in agent.policy.parameters())


def test_the_round_trip_of_the_command_doctor_fails_if_the_file_computes_something_else(monkeypatch):
    assert "opset 15" in run_round_trip()
    monkeypatch.setattr(GaussianFamily, "mode", lambda self, statistics: statistics[:, : self.size] + 0.1)
    with pytest.raises(ExportFailed, match="agent was not exported"):
        run_round_trip()
