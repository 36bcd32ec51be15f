"""Integer codes as one-hot vectors."""

import numpy as np
import pytest
import torch

from algorithm.networks import OneHot
from algorithm.specs import ObsSpec

VIEW = ObsSpec((3, 2, 2), "uint8", high=255.0)


def encode(factory, spec, obs):
    """Return the features of observations, which are the same in torch and in numpy."""
    encoder = factory(spec)
    encoded = encoder(torch.from_numpy(obs)).numpy()
    np.testing.assert_array_equal(encoder.numpy()(obs), encoded)
    assert encoded.dtype == encoder.numpy()(obs).dtype == np.float32
    assert encoded.shape == (len(obs), encoder.size)
    return encoded


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_every_cell_has_a_one_for_the_code_of_each_channel(dtype):
    n_values, rng = (4, 1, 3), np.random.default_rng(0)
    obs = np.stack([rng.integers(count, size=(5, 2, 2)) for count in n_values], 1).astype(dtype)
    expected = np.concatenate(
        [obs[:, channel] == code for channel, count in enumerate(n_values) for code in range(count)], 1
    )
    encoded = encode(OneHot(*n_values), VIEW, obs)
    np.testing.assert_array_equal(encoded, expected.reshape(5, -1))
    np.testing.assert_array_equal(encoded.sum(1), 3 * 4)


def test_a_code_without_a_value_is_encoded_as_zeros():
    encoded = encode(OneHot(2), ObsSpec((1,), "uint8"), np.array([[0], [1], [2], [255]], np.uint8))
    np.testing.assert_array_equal(encoded, [[1, 0], [0, 1], [0, 0], [0, 0]])
