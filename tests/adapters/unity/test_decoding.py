"""Messages of a player are decoded, and invalid ones raise an error."""

import io

import numpy as np
import pytest

pytest.importorskip("mlagents_envs")
from PIL import Image  # noqa: E402

from algorithm.adapters.adapter import EnvironmentCrashed  # noqa: E402
from algorithm.adapters.unity.decoding import Decoder, api  # noqa: E402

HWC, CHW = (2, 2, 1), (1, 2, 2)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 7, 3), np.uint8)


def parameters(continuous=0, branches=()):
    proto = api.BrainParametersProto(brain_name="B")
    proto.action_spec.num_continuous_actions = continuous
    proto.action_spec.num_discrete_actions = len(branches)
    proto.action_spec.discrete_branch_sizes.extend(branches)
    return proto


def agent(*observations, **fields):
    return api.AgentInfoProto(observations=observations, **fields)


def floats(values, properties=(), name="sensor"):
    values = np.asarray(values, np.float32)
    return api.ObservationProto(
        shape=values.shape, float_data={"data": values.ravel().tolist()}, dimension_properties=properties, name=name
    )


def png(*images):
    data = b""
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "png")
        data += stream.getvalue()
    return data


def compressed(shape, data, properties=CHW, mapping=()):
    return api.ObservationProto(
        shape=shape,
        compression_type=api.PNG,
        compressed_data=data,
        dimension_properties=properties,
        compressed_channel_mapping=mapping,
        name="camera",
    )


def read(*agents, **how):
    """Return the observations of the first sensor for the agents that await a decision."""
    decoder = Decoder(parameters(continuous=1, **how), agents[0])
    decisions, _ = decoder.decode(agents)
    ((name, spec),) = decoder.role.obs_specs.items()
    assert (decisions.obs[name].shape[1:], decisions.obs[name].dtype) == (spec.shape, spec.dtype)
    return decisions.obs[name]


def test_vectors_and_tables_are_read_unchanged():
    values = RNG.normal(size=(3, 4, 2)).astype(np.float32)
    np.testing.assert_array_equal(read(*(agent(floats(value, (4, 1))) for value in values)), values.reshape(3, 8))
    np.testing.assert_array_equal(read(*(agent(floats(value[0])) for value in values)), values[:, 0])


@pytest.mark.parametrize(
    ("properties", "axes"), [(CHW, (2, 0, 1)), (HWC, (0, 1, 2)), ((), (0, 1, 2)), ((0, 0, 0), (0, 1, 2))]
)
def test_raw_images_come_channels_first_from_either_layout(properties, axes):
    image = PIXELS.astype(np.float32)
    sent = agent(floats(image.transpose(axes), properties))
    np.testing.assert_array_equal(read(sent, sent), np.stack([image.transpose(2, 0, 1)] * 2))


@pytest.mark.parametrize(("properties", "shape"), [(CHW, (3, 5, 7)), (HWC, (5, 7, 3))])
def test_pngs_come_channels_first_from_either_layout(properties, shape):
    sent = agent(compressed(shape, png(PIXELS), properties))
    np.testing.assert_array_equal(read(sent)[0], PIXELS.transpose(2, 0, 1))


def test_several_pngs_are_one_image_of_many_channels():
    other = PIXELS[::-1].copy()
    both = np.concatenate((PIXELS, other), -1).transpose(2, 0, 1)
    np.testing.assert_array_equal(read(agent(compressed((5, 5, 7), png(PIXELS, other))))[0], both[:5])


def test_channels_are_mapped_and_averaged():
    planes = PIXELS.transpose(2, 0, 1).astype(float)
    sent = agent(compressed((2, 5, 7), png(PIXELS), mapping=(1, 0, 1)))
    np.testing.assert_allclose(read(sent)[0], [planes[1], (planes[0] + planes[2]) / 2], atol=0.5)
    left_out = agent(compressed((1, 5, 7), png(PIXELS), mapping=(-1, 0, -1)))
    np.testing.assert_array_equal(read(left_out)[0], planes[1:2])


def test_a_gray_camera_is_the_mean_of_its_colors():
    sent = agent(compressed((1, 5, 7), png(PIXELS)))
    np.testing.assert_array_equal(read(sent)[0, 0], np.rint(PIXELS.mean(-1)))


def test_agents_are_divided_into_waiting_and_done_agents():
    spec, *rest = parameters(branches=(2, 3)), floats([1.0])
    agents = [
        agent(*rest, id=4, reward=1, group_reward=3, group_id=2, action_mask=[0, 1, 0, 0, 1]),
        agent(*rest, id=4, reward=2, done=True, max_step_reached=True),
        agent(*rest, id=9, reward=5),
        agent(*rest, id=7, done=True),
    ]
    decisions, terminals = Decoder(spec, agents[0]).decode(agents)
    assert decisions.agent.tolist() == [4, 9] and decisions.reward.tolist() == [4, 5]
    assert decisions.obs["action_mask"].tolist() == [[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert terminals.agent.tolist() == [4, 7] and terminals.interrupted.tolist() == [True, False]
    assert terminals.reward.tolist() == [2, 0] and terminals.obs["action_mask"].all()


@pytest.mark.parametrize("names", [("", "same", "same", "action_mask"), ("sensor", "", "", "")])
def test_sensors_without_a_name_of_their_own_are_numbered(names):
    decoder = Decoder(parameters(branches=(2,)), agent(*(floats([1.0], name=name) for name in names)))
    expected = [name if name == "sensor" else f"sensor_{index}" for index, name in enumerate(names)]
    assert list(decoder.role.obs_specs) == [*expected, "action_mask"]


def test_waiting_and_done_agents_keep_their_own_observations():
    agents = [agent(floats([1.0])), agent(floats([2.0]), done=True), agent(floats([3.0]))]
    decisions, terminals = Decoder(parameters(continuous=1), agents[0]).decode(agents)
    assert decisions.obs["sensor"].ravel().tolist() == [1, 3] and terminals.obs["sensor"].ravel().tolist() == [2]


def test_no_agents_are_an_empty_batch():
    decisions, terminals = Decoder(parameters(branches=(2,)), agent(floats([1.0, 2.0]))).decode([])
    for batch in (decisions, terminals):
        assert (len(batch), batch.obs["sensor"].shape, batch.obs["action_mask"].shape) == (0, (0, 2), (0, 2))


def image(value=1.0, properties=CHW):
    pixels = np.ones((2, 2, 2))
    pixels[1, 1, 1] = value
    return floats(pixels, properties)


PAIR, CAMERA = floats([1.0, 2.0]), (3, 5, 7)
# What a message is, after one with the observation at the second place, and the error that it causes.
INVALID = [
    (agent(floats([1.0, np.nan])), PAIR, "NaN or infinity in the sensor 'sensor' of 'B'"),
    (agent(PAIR, reward=np.inf), PAIR, "NaN or infinity in a reward of 'B'"),
    (agent(PAIR, group_reward=np.nan), PAIR, "NaN or infinity in a group reward of 'B'"),
    (agent(floats([1.0, 2.0, 3.0])), PAIR, r"of shape \(3,\), not \(2,\), from the sensor 'sensor' of 'B'"),
    (agent(), PAIR, "0 observations of an agent of 'B', which has 1"),
    (agent(api.ObservationProto(shape=(2,), float_data={"data": [1.0]})), PAIR, "of 1 numbers, not 2, .* of 'B'"),
    *((agent(image(np.nan, layout)), image(1.0, layout), "NaN .* of 'B'") for layout in (HWC, CHW)),
    *(
        (agent(compressed(CAMERA, data)), compressed(CAMERA, png(PIXELS)), "that is .*from the sensor 'camera' of 'B'")
        for data in (b"", b"no image", png(PIXELS)[:60], png(PIXELS)[:-40], png(PIXELS[:4]))
    ),
    (
        agent(compressed(CAMERA, png(PIXELS), mapping=(0, 1))),
        compressed(CAMERA, png(PIXELS)),
        "3 channels, of which it maps 2, .* of 'B'",
    ),
]


@pytest.mark.parametrize(("invalid", "valid", "message"), INVALID)
def test_an_invalid_message_is_an_error_with_sensor_and_behavior(invalid, valid, message):
    decoder = Decoder(parameters(continuous=1), agent(valid))
    ended = api.AgentInfoProto.FromString(invalid.SerializeToString() + b"\x40\x01")
    for each in (invalid, ended):
        with pytest.raises(EnvironmentCrashed, match=message):
            decoder.decode([agent(valid), each])
