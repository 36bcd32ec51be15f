"""Random shifts of images: crops of padded images, in learning only, the same for all frames of a stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithm.networks import Blueprint, Conv, FrameStack, Gru, Mlp, RandomShift, Torso, Vector
from algorithm.networks.encoders import random_shift
from algorithm.networks.precision import Placement
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_sac, random_rollout_of, update

IMAGE = ObsSpec((2, 6, 7), "uint8", high=255)
ROLE = Role(4, {"image": IMAGE, "vector": ObsSpec((3,))}, ActionSpec(branches=(3,)))
ENCODERS = {"image": Conv((4, 3, 2), units=8), "*": Vector()}
SHIFT = {"image": RandomShift(2)}
PLAIN, SHIFTED = Blueprint(ENCODERS, body=Mlp(8)), Blueprint(ENCODERS, augmentations=SHIFT, body=Mlp(8))
AGENTS = {"acer": make_acer, "sac": make_sac, "a2c": make_a2c, "ppo": make_ppo, "reactor": make_reactor}


def random_images(n: int, shape: tuple[int, ...] = IMAGE.shape, dtype: str = "uint8", seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, *shape)).astype(dtype))


def find_shift(image: torch.Tensor, shifted: torch.Tensor, pixels: int) -> tuple[int, int]:
    """Return the rows and columns by which a random image [C, H, W] was shifted; fail without a match."""
    rows, columns = image.shape[1:]
    padded = np.pad(image.numpy(), ((0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
    matches = [
        (row - pixels, column - pixels)
        for row in range(2 * pixels + 1)
        for column in range(2 * pixels + 1)
        if np.array_equal(padded[:, row : row + rows, column : column + columns], shifted.numpy())
    ]
    assert len(matches) == 1
    return matches[0]


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(5, 9), st.integers(5, 9)),
    n=st.integers(0, 6),
    pixels=st.integers(1, 6),
    dtype=st.sampled_from(["uint8", "float32"]),
    seed=st.integers(0, 2**31),
)
def test_every_result_is_a_crop_of_the_padded_image(shape, n, pixels, dtype, seed):
    torch.manual_seed(seed)
    images = random_images(n, shape, dtype, seed)
    before = images.clone()
    shifted = random_shift(images, pixels)
    assert shifted.dtype == images.dtype and shifted.shape == images.shape
    assert torch.equal(images, before)
    for image, result in zip(images, shifted, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
        crops = np.lib.stride_tricks.sliding_window_view(padded, shape)[0]
        assert (crops == result.numpy()).all((-3, -2, -1)).any()


@pytest.mark.parametrize("pixels", [1, 2])
def test_all_shifts_are_equally_frequent(pixels):
    n, count = 5000, (2 * pixels + 1) ** 2
    images = random_images(n)
    torch.manual_seed(0)
    shifts = [find_shift(*pair, pixels) for pair in zip(images, random_shift(images, pixels), strict=True)]
    frequencies = np.unique(shifts, axis=0, return_counts=True)[1]
    assert len(frequencies) == count
    std = np.sqrt(n / count * (1 - 1 / count))
    np.testing.assert_allclose(frequencies, n / count, atol=5 * std)


def test_a_shift_of_0_pixels_changes_and_draws_nothing():
    images, state = random_images(5), torch.get_rng_state()
    assert torch.equal(random_shift(images, 0), images)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_memory_layout_of_an_image_changes_no_pixel():
    images = random_images(5)
    last = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    results = []
    for layout in (images, last):
        torch.manual_seed(0)
        results.append(random_shift(layout, 2))
    assert torch.equal(*results)


def test_shifting_uses_the_device_of_the_images_alone():
    images = torch.zeros(5, *IMAGE.shape, dtype=torch.uint8, device="meta")  # CPU tensors are errors with it
    assert random_shift(images, 2).device == images.device


def make_torso(blueprint: Blueprint, specs: dict[str, ObsSpec] | None = None) -> Torso:
    torch.manual_seed(0)
    return Torso(blueprint, specs or ROLE.obs_specs)


def random_obs(rows: int, lanes: int) -> dict[str, torch.Tensor]:
    images = random_images(rows * lanes).unflatten(0, (rows, lanes))
    return {"image": images, "vector": torch.randn(rows, lanes, 3)}


def test_unrolling_shifts_images_and_no_other_observation():
    torso, obs = make_torso(SHIFTED), random_obs(5, 4)
    first, memory = torch.zeros(5, 4, dtype=torch.bool), torch.zeros(4, 0)
    torch.manual_seed(1)
    features = torso.unroll(obs, first, memory)
    torch.manual_seed(1)
    images = random_shift(obs["image"].flatten(0, 1), 2).unflatten(0, (5, 4))
    assert torch.equal(features, make_torso(PLAIN).unroll({**obs, "image": images}, first, memory))
    assert not torch.equal(features, torso.unroll(obs, first, memory))  # each pass has its own shifts


def test_encoding_and_steps_shift_nothing():
    torso, plain, obs = make_torso(SHIFTED), make_torso(PLAIN), random_obs(1, 20)
    rows, state = {name: value[0] for name, value in obs.items()}, torch.get_rng_state()
    assert torch.equal(torso.encode(rows), plain.encode(rows))
    assert torch.equal(torso.step(rows, torch.zeros(20, 0))[0], plain.step(rows, torch.zeros(20, 0))[0])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("outside", [False, True], ids=["after the start", "at the start"])
def test_all_frames_of_a_row_have_the_same_shift(outside):
    frames, rows, lanes = 3, 8, 5
    torso = make_torso(Blueprint({"*": FrameStack(frames, Vector())}, augmentations=SHIFT), {"image": IMAGE})
    images = random_obs(rows, lanes)["image"]
    first = torch.zeros(rows, lanes, dtype=torch.bool)
    first[0 if outside else 4] = True
    features = torso.unroll({"image": images}, first, torch.zeros(lanes, torso.state_size))
    stacked = features.byte().unflatten(-1, (frames, *IMAGE.shape))
    ages = torch.arange(rows).unsqueeze(1) - torch.cummax(first * torch.arange(rows).unsqueeze(1), 0).values
    shifts = []
    for row in range(rows):
        for lane in range(lanes):
            known = [age for age in range(frames) if age <= ages[row, lane]]
            found = {find_shift(images[row - age, lane], stacked[row, lane, frames - 1 - age], 2) for age in known}
            assert len(found) == 1
            assert not stacked[row, lane, : frames - len(known)].any()  # from before the episode
            shifts += found
    assert len(set(shifts)) > 5


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "burn_in"), [*((name, 0) for name in AGENTS), *((name, 2) for name in ("acer", "sac", "reactor"))]
)
def test_every_agent_learns_from_shifted_images(name, precision, burn_in):
    encoders = {"image": FrameStack(2, ENCODERS["image"]), "*": Vector()}
    gradients = []
    for augmentations in (SHIFT, SHIFT, {}):
        blueprint = Blueprint(encoders, augmentations=augmentations, body=Mlp(8), memory=Gru(4))
        agent = AGENTS[name](ROLE, blueprint)
        learner = Learner(agent, ROLE, {}, None, Placement(precision=precision))
        rollout = random_rollout_of(agent, ROLE, rows=7)
        obs = {name: value.numpy() for name, value in random_obs(8, 4).items()}
        rollout = replace(rollout, obs={**obs, "vector": np.ones((8, 4, 3), np.float32)}, burn_in=burn_in)
        torch.manual_seed(0)
        update(learner, learner.prepare(rollout) if agent.schedule.epochs else rollout)
        assert learner.skipped_updates == 0
        gradients.append(learner.parameters.gradient.clone())
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_a_custom_augmentation_receives_the_rows_of_its_observation():
    received = []

    def negative(spec: ObsSpec):
        def augment(rows: torch.Tensor) -> torch.Tensor:
            received.append((spec, rows.shape, rows.dtype))
            return -rows

        return augment

    specs = {"vector": ObsSpec((3,)), ACTION_MASK: ObsSpec((2,), "uint8")}
    torso = make_torso(Blueprint(augmentations={"*": negative}), specs)
    obs = {"vector": torch.randn(4, 2, 3), ACTION_MASK: torch.ones(4, 2, 2, dtype=torch.uint8)}
    features = torso.unroll(obs, torch.zeros(4, 2, dtype=torch.bool), torch.zeros(2, 0))
    assert torch.equal(features, -obs["vector"])
    assert received == [(specs["vector"], (8, 3), torch.float32)]
