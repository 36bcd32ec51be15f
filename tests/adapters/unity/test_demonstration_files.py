"""Files of Unity's demonstration recorder, written here and by Unity's own, and recorded traffic of its runtime."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlagents_envs")
import grpc  # noqa: E402

import algorithm  # noqa: E402
from algorithm.adapters.scenes.ports import find_free_port  # noqa: E402
from algorithm.adapters.unity.client import UnityClient, api  # noqa: E402
from algorithm.adapters.unity.demonstration_files import FIRST_BYTE  # noqa: E402
from algorithm.errors import UserError  # noqa: E402
from tests.adapters.unity.test_decoding import floats, parameters  # noqa: E402

RECORDED = Path(__file__).resolve().parents[4] / "shared" / "unity_real"
recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="needs files that Unity's own runtime recorded")


def delimit(message) -> bytes:
    """Return a message after its length, a varint."""
    data, length = message.SerializeToString(), b""
    rest = len(data)
    while True:
        length += bytes([rest % 128 + 128 * (rest >= 128)])
        rest //= 128
        if not rest:
            return length + data


def write_demo(path: Path, episodes, behavior: str = "Match", steps: int | None = None, after: bytes = b"") -> None:
    """Write episodes of (rewards, whether it was interrupted), as Unity does.

    The observation of message k is k; the continuous and the discrete action after it are 0.01 k and k modulo 3. The
    messages after the last complete episode are those of an episode that continues.
    """
    meta = api.DemonstrationMetaProto(api_version=1, demonstration_name="d", number_episodes=len(episodes))
    pairs, number, before = [], 0, 0
    for rewards, interrupted in episodes:
        is_complete = interrupted is not None
        for k, reward in enumerate((0.0, *rewards)):
            done = is_complete and k == len(rewards)
            info = api.AgentInfoProto(
                observations=[floats([number], name="vector")],
                reward=reward,
                done=done,
                max_step_reached=bool(done and interrupted),
                action_mask=[False, False, k == 0 and before != 2],
            )
            taken = [0.01 * before, before % 3] if k else [0.0, 0]
            action = api.AgentActionProto(continuous_actions=taken[:1], discrete_actions=taken[1:])
            pairs.append(api.AgentInfoActionPairProto(agent_info=info, action_info=action))
            before, number = number, number + 1
    meta.number_steps = len(pairs) if steps is None else steps
    described = parameters(continuous=1, branches=(3,))
    described.brain_name = behavior
    head = delimit(meta).ljust(FIRST_BYTE, b"\0")
    path.write_bytes(head + delimit(described) + b"".join(map(delimit, pairs)) + after)


def test_an_action_belongs_to_the_observation_before_it_and_an_interrupted_episode_has_its_last_one(tmp_path):
    path = tmp_path / "a.demo"
    write_demo(path, [((1, 2), False), ((3,), True), ((4, 5), None)], "Match?team=1", after=b"\x07garbage")
    ((role, read),) = algorithm.read_demonstrations(path).items()
    assert role == "Match-team1" and read.role.action_spec.branches == (3,)
    one, two = read.episodes  # the third has no end
    assert one.observations["vector"][:, 0].tolist() == [0, 1] and one.terminated
    np.testing.assert_allclose(one.actions, [[0, 0], [0.01, 1]], atol=1e-6)
    assert one.rewards.tolist() == [1, 2]
    assert two.observations["vector"][:, 0].tolist() == [3, 4] and not two.terminated
    np.testing.assert_allclose(two.actions, [[0.03, 0]], atol=1e-6)
    assert two.rewards.tolist() == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "is cut or damaged, or no file of Unity's"),
        (lambda path: path.write_bytes(b"text" * 40), "is cut or damaged, or no file of Unity's"),
        (lambda path: path.write_bytes(b""), "is cut or damaged"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: write_demo(path, [], steps=0), "has no steps"),
        (lambda path: write_demo(path, [((1.0,), None)]), "has no complete episode"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, change, message):
    path = tmp_path / "a.demo"
    write_demo(path, [((1.0, 1.0), False)])
    change(path)
    with pytest.raises(UserError, match=message) as error:
        algorithm.read_demonstrations(path)
    assert len(str(error.value).splitlines()) == 1


@recorded
def test_a_file_of_unitys_recorder():
    ((role, read),) = algorithm.read_demonstrations(RECORDED / "match.demo").items()
    assert role == "Match" and [len(each.actions) for each in read.episodes] == [20, 20, 20]
    np.testing.assert_allclose([each.rewards.sum() for each in read.episodes], 40, rtol=1e-5)
    vector = np.concatenate([each.observations["VectorSensor_size5"] for each in read.episodes])
    actions = np.concatenate([each.actions for each in read.episodes])
    np.testing.assert_allclose(actions[:, :2], vector[:, :2])  # the player knows the answer
    np.testing.assert_array_equal(actions[:, 3], vector[:, 4])
    assert {name: spec.shape for name, spec in read.role.obs_specs.items()} == {
        "Others": (15,),
        "VectorSensor_size5": (5,),
        "action_mask": (5,),
    }


def read_trace() -> list[tuple[str, object]]:
    """Return the messages of the trace, each with its sender."""
    data, place, messages = (RECORDED / "trace.bin").read_bytes(), 0, []
    while place < len(data):
        (length,) = struct.unpack_from("<i", data, place + 1)
        message = api.UnityMessageProto.FromString(data[place + 5 : place + 5 + length])
        messages.append((chr(data[place]), message))
        place += 5 + length
    return messages


@recorded
@pytest.mark.timeout(60)
def test_recorded_traffic_is_decoded_and_answered_as_it_was():
    messages, port, answers = read_trace(), find_free_port(), []
    sent = [message for sender, message in messages if sender == "U"]
    expected = [message for sender, message in messages if sender == "P"]

    def play() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            exchange = channel.unary_unary(
                "/communicator_objects.UnityToExternalProto/Exchange",
                request_serializer=api.UnityMessageProto.SerializeToString,
                response_deserializer=api.UnityMessageProto.FromString,
            )
            answers.extend(exchange(message, timeout=20, wait_for_ready=True) for message in sent)

    player = threading.Thread(target=play)
    player.start()
    client = UnityClient(None, port=port, start_limit=20, limit=20, seed=7)
    tick, ticks, ends = client.reset(), 1, 0
    for answer in expected[2:-1]:
        taken = answer.unity_input.rl_input.agent_actions
        actions = {
            name: np.array([[*each.continuous_actions, *each.discrete_actions] for each in listed.value], np.float32)
            for name, listed in taken.items()
        }
        tick = client.step(actions)
        ticks += 1
        ends += sum(len(ended) for _, ended in tick.batches.values())
    client.close()
    player.join(20)
    assert set(client.roles) == {"Match?team=0", "Match?team=1"} and ticks == len(sent) - 2
    assert ends > 8  # episodes of 20 ticks, some of them interrupted
    for answer, wanted in zip(answers[2:-1], expected[2:-1], strict=True):
        got, was = (each.unity_input.rl_input.agent_actions for each in (answer, wanted))
        assert {name: listed.SerializeToString() for name, listed in got.items()} == {
            name: listed.SerializeToString() for name, listed in was.items()
        }
