"""Memories: their results, which are the same for single steps, whole rollouts and replayed sequences."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation
from torch import nn

from algorithm.adapters.adapter import Adapter
from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp, Vector
from algorithm.networks.memories import Gate, rotate
from algorithm.networks.torso import Torso
from algorithm.replay import Replay
from algorithm.specs import ObsSpec
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.learner import Learner
from tests.adapters.configs import config
from tests.builders import make_acer
from tests.doubles import collect_ticks
from tests.fakes import AnyAction, Skipping

MEMORIES = {
    "gru": Gru(5),
    "lstm": Lstm(5),
    "attention": Attention(8, heads=2, window=4),
    "two layers of attention": Attention(8, heads=2, window=3, layers=2),
    "attention, absolute positions": Attention(8, heads=2, window=4, positions="absolute"),
    "attention, rotary positions and gates": Attention(8, heads=2, window=4, layers=2, positions="rotary", gate=True),
}
BLUEPRINTS = {
    **{name: Blueprint(body=Mlp(6), memory=memory) for name, memory in MEMORIES.items()},
    "frame stack": Blueprint(encoders={"*": FrameStack(4, Vector())}, body=Mlp(6)),
    "frame stack and gru": Blueprint(encoders={"*": FrameStack(3, Vector())}, memory=Gru(5)),
}
ADAPTERS = {
    "discrete": lambda: AnyAction(config("", 3, {"branches": [3]})),
    "hybrid": lambda: AnyAction(config("", 3, {"continuous": 2, "branches": [2, 3]})),
    "lanes that skip ticks": lambda: Skipping(config("", 3, {})),
}


def memory_of(name: str, size: int = 6) -> nn.Module:
    """Return a memory with parameters far from zero."""
    torch.manual_seed(0)
    memory = MEMORIES[name](size)
    for parameter in memory.parameters():
        nn.init.normal_(parameter, std=0.5)
    return memory


make_any_acer = partial(make_acer, std="state_dependent", sdn_samples=1)


def collected(blueprint: Blueprint, simulator: Adapter, burn_in: int, make_agent=make_any_acer):
    """Return an agent that does not learn, its collected rollouts, and a replay of them."""
    role = simulator.roles["agent"]
    agent = make_agent(role, blueprint, rollout_length=7, sequence_length=9, burn_in_step=burn_in)
    learner = Learner(agent, role, {}, max_step=None)
    for parameter in agent.policy.parameters():
        nn.init.normal_(parameter, std=0.3)
    schedule = agent.schedule
    replay = Replay(
        capacity=600,
        lanes=role.lanes,
        chunk=7,
        length=9,
        rng=np.random.default_rng(0),
        burn_in=schedule.burn_in,
        warmup_rows=schedule.warmup_rows,
        stored_state_size=agent.stored_state_size,
    )
    actor, rollouts = (
        Actor(
            TrainingComponents(
                simulator, lambda name, role: AgentComponents(role=role, agent=agent, scheduler=None, learner=learner)
            ),
            seed=0,
        ),
        [],
    )
    for _, rollout in collect_ticks(actor, 150):
        rollouts.append(rollout)
        replay.add(rollout)
    return agent, rollouts, replay


@pytest.mark.parametrize("name", MEMORIES)
def test_an_episode_is_independent_of_those_around_it(name):
    memory, features, first = memory_of(name), torch.randn(12, 1, 6), torch.zeros(12, 1, dtype=torch.bool)
    first[[4, 9]] = True
    outputs, _ = memory.unroll(features, first, torch.randn(1, memory.state_size))
    alone, _ = memory.unroll(features[4:9], first[4:9], torch.randn(1, memory.state_size))
    torch.testing.assert_close(outputs[4:9], alone)
    fresh, _ = memory.unroll(features[4:9], torch.zeros(5, 1, dtype=torch.bool), torch.zeros(1, memory.state_size))
    torch.testing.assert_close(outputs[4:9], fresh)


@pytest.mark.parametrize("name", MEMORIES)
def test_no_gradient_crosses_the_start_of_an_episode_or_comes_from_later_rows(name):
    memory, first = memory_of(name), torch.zeros(8, 1, dtype=torch.bool)
    first[3] = True
    features, before = torch.randn(8, 1, 6, requires_grad=True), torch.randn(1, memory.state_size, requires_grad=True)
    memory.unroll(features, first, before)[0][5].square().sum().backward()
    assert not features.grad[:3].any()
    assert not features.grad[6:].any()
    assert not before.grad.any()
    assert features.grad[3:6].any(-1).all()


@pytest.mark.parametrize("name", MEMORIES)
def test_steps_equal_unrolled_rows(name):
    memory, features = memory_of(name), torch.randn(11, 3, 6)
    first, state = torch.rand(11, 3) < 0.2, torch.zeros(3, memory.state_size)
    expected, after = memory.unroll(features, first, state)
    rows = []
    for row, starts in zip(features, first, strict=True):
        output, state = memory.step(row, state * ~starts.unsqueeze(-1))
        rows.append(output)
    torch.testing.assert_close(torch.stack(rows), expected)
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_recurrent_memory_equals_torchs(name):
    memory, cell = memory_of(name), (nn.GRUCell if name == "gru" else nn.LSTMCell)(6, 5)
    # Torch's LSTM has the candidate third, this one last: one sigmoid computes three gates.
    order = [0, 1, 2] if name == "gru" else [0, 1, 3, 2]
    weights = (memory.inputs.weight, memory.recurrent.weight, memory.inputs.bias, memory.recurrent.bias)
    for own, theirs in zip(cell.parameters(), weights, strict=True):
        own.data = torch.cat([theirs.data.split(5)[place] for place in order])
    x, state = torch.randn(4, 6), torch.randn(4, memory.state_size)
    output, after = memory.step(x, state)
    expected = (cell(x, state),) if name == "gru" else cell(x, state.chunk(2, -1))
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(after, torch.cat(expected, -1))


def test_the_forget_gate_of_an_lstm_starts_open():
    bias = Lstm(5)(6).inputs.bias
    assert bias.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10


@pytest.mark.parametrize("window", [2, 4, 30])
def test_attention_without_distance_bias_equals_the_transformer_of_torch(window):
    torch.manual_seed(0)
    memory = Attention(8, heads=2, window=window)(6)
    layer, theirs = memory.layers[0], nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    pairs = [
        (theirs.self_attn.in_proj_weight, layer.project.weight),
        (theirs.self_attn.in_proj_bias, layer.project.bias),
        *zip(theirs.self_attn.out_proj.parameters(), layer.output.parameters(), strict=True),
        *zip(theirs.linear1.parameters(), layer.hidden[0].parameters(), strict=True),
        *zip(theirs.linear2.parameters(), layer.hidden[2].parameters(), strict=True),
    ]
    for own, ours in pairs:
        own.data = ours.data
    features, rows = torch.randn(10, 2, 6), torch.arange(10)
    back = rows[:, None] - rows
    mask = torch.where((back >= 0) & (back < window), 0.0, -torch.inf)
    expected = theirs(memory.inputs(features).transpose(0, 1), mask).transpose(0, 1)
    first = torch.zeros(10, 2, dtype=torch.bool)
    outputs, _ = memory.unroll(features, first, torch.zeros(2, memory.state_size))
    torch.testing.assert_close(outputs, memory.norm(expected))


def start_at(memory: nn.Module, number: int) -> torch.Tensor:
    """Return a memory of one lane in which the last row, of zeros, has a number in its episode."""
    state = torch.zeros(1, memory.past_rows, memory.entry_size)
    state[:, -1, -1] = number
    return state.flatten(1)


@pytest.mark.parametrize("name", ["attention, absolute positions", "attention, rotary positions and gates"])
def test_rotary_positions_are_distances_and_absolute_ones_are_numbers_of_steps(name):
    memory, features, first = memory_of(name), torch.randn(7, 1, 6), torch.zeros(7, 1, dtype=torch.bool)
    early, late = (memory.unroll(features, first, start_at(memory, number))[0][4:] for number in (1, 300))
    assert torch.allclose(early, late, atol=1e-3) == ("rotary" in name)
    swapped = memory.unroll(features[[0, 1, 3, 2, 4, 5, 6]], first, start_at(memory, 1))[0][4]
    assert not torch.allclose(swapped, early[0], atol=1e-3)  # the order of rows matters


def test_absolute_positions_are_those_of_the_transformer():
    numbers, size = torch.tensor([[1.0, 2.0, 50.0]]), 8
    memory = Attention(size, heads=2, window=4, positions="absolute")(6)
    added = memory.embed(torch.zeros(1, 3, 6), numbers) - memory.inputs(torch.zeros(1, 3, 6))
    for row, number in enumerate((1, 2, 50)):
        for pair in range(size // 2):
            angle = number / 10_000 ** (2 * pair / size)
            expected = torch.tensor([np.sin(angle), np.cos(angle)], dtype=torch.float32)
            torch.testing.assert_close(added[0, row, [pair, pair + size // 2]], expected, atol=1e-5, rtol=0)


def test_rotation_keeps_lengths_and_makes_products_depend_on_the_distance():
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)
    products = [
        (rotate(q, torch.tensor([[float(one)]]), 2) * rotate(k, torch.tensor([[float(other)]]), 2)).sum()
        for one, other in [(3, 1), (13, 11), (3, 2)]
    ]
    torch.testing.assert_close(products[0], products[1], rtol=1e-4, atol=1e-5)
    assert abs(products[0] - products[2]) > 1e-3
    torch.testing.assert_close(rotate(q, torch.tensor([[7.0]]), 2).norm(), q.norm(), rtol=1e-5, atol=0)


def test_a_gate_begins_near_its_input_and_follows_the_paper():
    torch.manual_seed(0)
    gate, x, y = Gate(4), torch.randn(3, 4), torch.randn(3, 4)
    w, u = (
        gate.of_layer.weight.detach().chunk(3),
        [*gate.of_input.weight.detach().chunk(2), gate.of_reset.weight.detach()],
    )
    y_ = y.clamp(min=0)
    r, z = torch.sigmoid(y_ @ w[0].T + x @ u[0].T), torch.sigmoid(y_ @ w[1].T + x @ u[1].T - 2)
    expected = (1 - z) * x + z * torch.tanh(y_ @ w[2].T + (r * x) @ u[2].T)
    torch.testing.assert_close(gate(x, y), expected)
    for parameter in gate.parameters():
        nn.init.zeros_(parameter)
    torch.testing.assert_close(gate(x, y), x * (1 - 1 / (1 + np.exp(2))))


def test_attention_learns_a_bias_by_distance():
    memory, features = memory_of("attention"), torch.randn(4, 1, 6)
    start = torch.zeros(4, 1, dtype=torch.bool), torch.zeros(1, memory.state_size)
    for has_bias in (True, False):  # without the bias the order has no effect
        before, swapped = (memory.unroll(rows, *start)[0][3] for rows in (features, features[[1, 0, 2, 3]]))
        assert torch.allclose(before, swapped, atol=1e-3 if has_bias else 1e-6) != has_bias
        nn.init.zeros_(memory.layers[0].bias)


class Counting(gymnasium.Env):
    """An environment whose observation is a small byte image of the numbers of the episode and the step."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 3, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.age = self.episode + 1, 0
        return self._show(), {}

    def step(self, action):
        self.age += 1
        return self._show(), 0.0, self.age == 5, False, {}

    def _show(self):
        return (np.arange(12).reshape(2, 3, 2) + 20 * self.age + 7 * self.episode).astype(np.uint8)


def test_a_frame_stack_equals_the_wrapper_of_gymnasium():
    wrapped = FrameStackObservation(Counting(), 3, padding_type="zero")
    rows, first = [], []
    for _ in range(4):
        rows.append(wrapped.reset()[0])
        first.append(True)
        for _ in range(5):
            rows.append(wrapped.step(0)[0])
            first.append(False)
    expected = torch.from_numpy(np.stack(rows).reshape(24, 1, 6, 3, 2))
    frames, first = expected[:, :, 4:], torch.tensor(first)[:, None]
    encoder = FrameStack(3, Vector())(ObsSpec((2, 3, 2), "uint8"))
    torch.testing.assert_close(encoder.stack(frames, first, None, 0, 24), expected)
    for begin in (1, 2, 7, 20):
        torch.testing.assert_close(encoder.stack(frames, first, None, begin, 24), expected[begin:])
    memory, acted = torch.zeros(1, encoder.state_size), []
    for t in range(24):
        before = memory
        output, memory = encoder.step(frames[t], memory * ~first[t])
        acted.append(output)
        stacked = encoder.stack(frames[t:], first[t:], before, 0, 24 - t)
        torch.testing.assert_close(stacked, expected[t:])
    torch.testing.assert_close(torch.stack(acted).flatten(), expected.flatten().float())


def test_past_frames_follow_without_the_network():
    specs = {"a": ObsSpec((2, 3, 2), "uint8"), "b": ObsSpec((3,)), "c": ObsSpec((2,))}
    stacks = {"a": FrameStack(3, Vector()), "b": Vector(), "c": FrameStack(2, Vector())}
    torso, rng = Torso(Blueprint(encoders=stacks), specs), np.random.default_rng(0)
    memory = np.zeros((4, torso.state_size), np.float32)
    for _ in range(4):
        obs = {name: (255 * rng.random((4, *spec.shape))).astype(spec.dtype) for name, spec in specs.items()}
        tensors = {name: torch.from_numpy(value) for name, value in obs.items()}
        expected = torso.step(tensors, torch.from_numpy(memory))[1].numpy()
        memory = torso.push_frames(obs, memory)
        assert memory.dtype == np.float32 and np.array_equal(memory, expected)


def test_a_stack_of_normalized_vectors_has_the_moments_of_one_vector():
    encoder = FrameStack(3, Vector(normalize=True))(ObsSpec((2,)))
    rows = torch.randn(50, 2) * torch.tensor([3.0, 0.5]) + 1
    encoder.observe(rows)
    normalized = encoder(torch.cat([rows] * 3, 1))
    torch.testing.assert_close(
        normalized, ((rows - rows.mean(0)) / rows.std(0, correction=0)).repeat(1, 3).clamp(-5, 5)
    )
