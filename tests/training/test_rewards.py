"""The transformation of rewards: clip, scale, and divide by a running statistic of returns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.agents.agent import RewardTransform
from algorithm.training.rewards import ReturnMoments, RewardNormalizer
from tests.builders import random_boundaries, random_rollout
from tests.oracles import discounted_sums, returns_so_far

LANES = 4
KINDS = ("return_std", "return_max")
RAW = torch.tensor([1.0, -4.0])  # rewards


def make_normalizer(kind="return_max", lanes=LANES, **changes):
    """Return a normalizer with gamma 0.9 and, for return_max, a bound of 5."""
    defaults = {"scale": 1.0, "clip": None, "gamma": 0.9, "return_bound": 5.0 if kind == "return_max" else None}
    return RewardNormalizer(RewardTransform(reward_normalization=kind, **{**defaults, **changes}), lanes)


def normalizer_state(normalizer):
    """Return copies of everything that `observe` changes."""
    buffers = {name: buffer.clone() for name, buffer in normalizer.moments.named_buffers()}
    return {**buffers, "running_sums": torch.from_numpy(normalizer.running_sums.copy())}


def assert_same_state(normalizer, other):
    state, expected = normalizer_state(normalizer), normalizer_state(other)
    assert state.keys() == expected.keys()
    assert all(value.equal(expected[name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [-3.0, -0.7, 0.2, 5.0]),
        ({"clip": 1.0}, [-1.0, -0.7, 0.2, 1.0]),
        ({"clip": 1.0, "scale": 0.1}, [-0.1, -0.07, 0.02, 0.1]),
    ],
    ids=str,
)
def test_rewards_are_clipped_and_then_scaled(changes, expected):
    scaled = make_normalizer(None, **changes).scale(torch.tensor([-3.0, -0.7, 0.2, 5.0]))
    torch.testing.assert_close(scaled, torch.tensor(expected))


def collected(rng, rows=7):
    """Return a rollout with rewards far from 0, whose lanes are in any order, and some continue no previous rollout."""
    record = random_rollout(rng, rows, LANES)
    record.lane, record.continues_previous = rng.permutation(LANES), rng.random(LANES) < 0.7
    record.first, record.alive, final = random_boundaries(rng, rows, LANES)
    record.reward = np.where(final, 0, 3 + record.reward).astype(np.float32)
    return record


def observe_with(*kinds, count):
    """Return normalizers of some kinds that have observed the same rollouts."""
    rng, normalizers = np.random.default_rng(0), [make_normalizer(kind) for kind in kinds]
    for record in (collected(rng) for _ in range(count)):
        for normalizer in normalizers:
            normalizer.observe(record)
    return normalizers


class Episodes:
    """The rows (reward, valid) of each episode of some rollouts."""

    def __init__(self):
        self.all, self.current = [], {}  # the current one of each lane

    def add(self, record, clip=None):
        reward = record.reward if clip is None else record.reward.clip(-clip, clip)
        for b, lane in enumerate(record.lane):
            for t in range(len(reward)):
                if record.first[t, b] or (t == 0 and not record.continues_previous[b]) or lane not in self.current:
                    self.current[lane] = []
                    self.all.append(self.current[lane])
                self.current[lane].append((float(reward[t, b]), bool(record.valid[t, b])))


@pytest.mark.parametrize("clip", [None, 2.5])
def test_rewards_are_divided_by_the_std_of_the_returns_that_follow_each_row(clip):
    rng = np.random.default_rng(0)
    scale = make_normalizer("return_std", scale=0.5, clip=clip)
    episodes = Episodes()
    for record in (collected(rng) for _ in range(12)):
        scale.observe(record)
        episodes.add(record, clip)
        seen = returns_so_far(episodes.all, 0.9)
        assert scale.moments.count == len(seen)
        assert scale.moments.std.item() == pytest.approx(np.std(seen), rel=1e-9)
    expected = 0.5 * np.clip(RAW.numpy(), -clip, clip) if clip else np.array([0.5, -2.0])
    torch.testing.assert_close(scale.scale(RAW), torch.from_numpy(expected / np.std(seen)).float())


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_equal_returns_leave_rewards_unchanged(rows):
    moments = ReturnMoments(0.9)
    moments.count, moments.total, moments.squares = rows * torch.tensor([1, 0.1, 0.1**2], dtype=torch.float64)
    assert moments.std == 1


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_of_one_lane_count_in_order_of_time(kind):
    whole = random_rollout(np.random.default_rng(0), 6, 1)
    whole.first[:], whole.alive[:] = False, True
    halves = replace(
        whole,
        first=np.zeros((4, 2), bool),
        reward=np.hstack((whole.reward[:3], whole.reward[3:])),
        alive=np.ones((3, 2), bool),
        lane=np.zeros(2, int),
        continues_previous=np.ones(2, bool),
    )
    scales = [make_normalizer(kind) for _ in range(2)]
    for scale, record in zip(scales, (whole, halves), strict=True):
        scale.observe(record)
    assert scales[1].moments.std.item() == pytest.approx(scales[0].moments.std.item())
    assert scales[1].moments.divisor.item() == pytest.approx(scales[0].moments.divisor.item())
    np.testing.assert_allclose(scales[1].running_sums, scales[0].running_sums)


@pytest.mark.parametrize("kind", KINDS)
def test_added_lanes_count_as_lanes_that_existed_from_the_start(kind):
    rng = np.random.default_rng(1)
    grown, large = (make_normalizer(kind, lanes) for lanes in (LANES, LANES + 2))
    for added in (0, 2):
        grown.grow(LANES + added)
        for record in (collected(rng) for _ in range(5)):
            record.lane[:added] = LANES + np.arange(added)
            for scale in (grown, large):
                scale.observe(record)
    assert_same_state(grown, large)


def one_lane(reward, invalid=()):
    """Return a rollout of lane 0 with these rewards [T]; `invalid` are rows."""
    record = random_rollout(np.random.default_rng(0), len(reward), 1)
    record.reward = np.array(reward, np.float32)[:, None]
    record.first[:], record.alive[:] = False, True
    for row in invalid:
        record.first[row + 1] = True
    return record


def test_rewards_are_divided_by_the_largest_sum_over_the_bound():
    """Rewards of 1 with gamma 0.9 have returns of 10 in the end, which are divided by 2."""
    normalizer, half = make_normalizer(), make_normalizer(scale=0.5)
    for one in (normalizer, half):
        one.observe(one_lane([1] * 400))
    assert normalizer.moments.std < 2
    torch.testing.assert_close(normalizer.scale(RAW), torch.tensor([0.5, -2.0]))
    torch.testing.assert_close(half.scale(RAW), torch.tensor([0.25, -1.0]))


def test_rewards_are_divided_by_the_std_if_it_is_larger():
    std, maximum = observe_with("return_std", "return_max", count=3)
    maximum.moments.bound = 100.0
    assert maximum.moments.largest / 100 < std.moments.std
    assert maximum.scale(RAW).equal(std.scale(RAW))


def test_rewards_are_unchanged_if_only_zeros_were_observed():
    normalizer = make_normalizer()
    for reward in ([], [0.0] * 30):
        if reward:
            normalizer.observe(one_lane(reward))
        assert normalizer.moments.divisor == 1
        assert normalizer.scale(RAW).equal(RAW)


def test_a_row_that_is_not_valid_keeps_the_sum_of_its_lane():
    normalizer, expected = make_normalizer(), make_normalizer()
    normalizer.observe(one_lane([1, 2, np.nan], invalid=[2]))
    expected.observe(one_lane([1, 2]))
    assert_same_state(normalizer, expected)
    assert normalizer.running_sums[3, 0] == pytest.approx(2.9)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    gamma=st.floats(0, 1),
    bound=st.floats(0.1, 100),
    size=st.floats(1e-4, 1e4),
    shift=st.floats(-2, 2),
    clip=st.none() | st.floats(0.1, 10),
)
def test_normalized_discounted_sums_are_within_the_bound(seed, gamma, bound, size, shift, clip):
    rng, episodes = np.random.default_rng(seed), Episodes()
    normalizer = make_normalizer(gamma=gamma, return_bound=bound, clip=clip)
    for record in (collected(rng, int(rng.integers(1, 8))) for _ in range(4)):
        record.reward = (size * (record.reward - 3 + shift)).astype(np.float32)
        normalizer.observe(record)
        episodes.add(record, clip)
        sums = discounted_sums(episodes.all, gamma)
        largest = np.abs(sums).max(initial=0)
        assert normalizer.moments.largest.item() == pytest.approx(largest, rel=1e-9, abs=1e-12)
        divided = [
            [(normalizer.scale(torch.tensor(r, dtype=torch.float64)).item(), ok) for r, ok in rows]
            for rows in episodes.all
        ]
        assert np.abs(discounted_sums(divided, gamma)).max(initial=0) <= bound * (1 + 1e-6)


def test_the_other_statistics_of_return_max_are_those_of_return_std():
    """Return_std has no further state than before: three buffers and three sums for each lane."""
    std, maximum = observe_with("return_std", "return_max", count=5)
    expected, state = normalizer_state(std), normalizer_state(maximum)
    assert list(state) == ["count", "total", "squares", "largest", "running_sums"]
    assert list(expected) == ["count", "total", "squares", "running_sums"]
    assert expected["running_sums"].shape == make_normalizer(None).running_sums.shape == (3, LANES)
    assert expected.pop("running_sums").equal(state["running_sums"][:3]) and len(state["running_sums"]) == 4
    assert all(value.equal(state[name]) for name, value in expected.items())


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_on_a_device_are_not_read(kind):
    """Tensors on `meta` have no values: reading one, for which a GPU would have to finish its work, is an error."""
    normalizer = make_normalizer(kind)
    normalizer.moments.to("meta")
    normalizer.observe(one_lane([1, 2]))
    assert normalizer.scale(torch.zeros(3, 2, device="meta")).shape == (3, 2)


@pytest.mark.parametrize("bound", [None, 0.0, -5.0])
def test_return_max_needs_a_bound(bound):
    with pytest.raises(ValueError, match=f"return_bound is {bound}; return_max needs a number above 0"):
        make_normalizer(return_bound=bound)
