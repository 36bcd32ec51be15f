import numpy as np
import pytest
import torch

from algorithm.distributions import MASKED_LOGIT, Categorical, CategoricalFamily
from tests.distributions.oracles import DRAWS, gradient, one_hot, random, within_noise
from tests.oracles import close, softmax

LOGITS, AVERAGE, WEIGHT = (2 * random(5, 2, 4, seed=seed) for seed in (1, 2, 3))
SAMPLE = torch.from_numpy(np.random.default_rng(0).integers(4, size=(5, 2, 1)))


def kl_from_average(log_probs):
    average = AVERAGE.log_softmax(-1)
    return (average.exp() * (average - log_probs)).sum(-1)


def test_values_equal_torch_distributions():
    policy, theirs = Categorical(LOGITS), torch.distributions.Categorical(logits=LOGITS)
    average = torch.distributions.Categorical(logits=AVERAGE)
    close(policy.probs, theirs.probs)
    close(policy.log_probs, theirs.logits)
    for sample in (SAMPLE, SAMPLE.float()):  # the dtype when sampled, and when stored
        log_prob = theirs.log_prob(SAMPLE.squeeze(-1))
        close(policy.log_prob(sample), log_prob)
        close(policy.log_ratio(Categorical(AVERAGE), sample), log_prob - average.log_prob(SAMPLE.squeeze(-1)))
    close(policy.entropy, theirs.entropy())
    close(policy.kl(Categorical(AVERAGE)), torch.distributions.kl_divergence(average, theirs))
    close(policy.expectation(WEIGHT), (theirs.probs * WEIGHT).sum(-1))


def test_gradients_with_respect_to_logits_equal_autograd():
    policy = Categorical(LOGITS)
    close(policy.summed_score(WEIGHT), gradient(lambda x: WEIGHT * x.log_softmax(-1), LOGITS))
    close(policy.entropy_gradient(), gradient(lambda x: -x.softmax(-1) * x.log_softmax(-1), LOGITS))
    close(policy.kl_gradient(Categorical(AVERAGE)), gradient(lambda x: kl_from_average(x.log_softmax(-1)), LOGITS))


def test_the_score_of_a_sample_is_the_summed_score_with_its_weight_only():
    policy, weight = Categorical(LOGITS), WEIGHT[..., 0]
    expected = gradient(lambda x: weight * Categorical(x).log_prob(SAMPLE), LOGITS)
    for sample in (SAMPLE, SAMPLE.float()):
        close(policy.score(sample, weight), expected)
    close(policy.summed_score(one_hot(SAMPLE, 4) * weight.unsqueeze(-1)), expected)


def test_the_product_with_the_fisher_matrix_is_0_for_masked_actions():
    masked = LOGITS.clone()
    masked[..., 0] = MASKED_LOGIT
    assert Categorical(masked).fisher_product(WEIGHT)[..., 0].eq(0).all()


def test_gradients_with_respect_to_probabilities_equal_autograd():
    policy = Categorical(LOGITS)
    probs = LOGITS.softmax(-1)
    close(policy.score_wrt_probs(WEIGHT), gradient(lambda p: WEIGHT * p.log(), probs))
    close(policy.kl_gradient_wrt_probs(Categorical(AVERAGE)), gradient(lambda p: kl_from_average(p.log()), probs))


def test_a_projection_in_probabilities_changes_logits_along_policy_minus_average():
    policy, average = Categorical(LOGITS), Categorical(AVERAGE)
    kappa = random(5, 2, 1, seed=4).abs()
    step = policy.score_wrt_probs(WEIGHT) - kappa * policy.kl_gradient_wrt_probs(average)
    reaching = gradient(lambda x: step * x.softmax(-1), LOGITS)
    close(reaching, policy.summed_score(WEIGHT) - kappa * policy.kl_gradient(average))


def test_the_memory_layout_has_no_effect():
    by_action = LOGITS.movedim(-1, 0).contiguous().movedim(0, -1)
    assert not by_action.is_contiguous()
    plain, laid_out, average = Categorical(LOGITS), Categorical(by_action), Categorical(AVERAGE)
    for name in ("probs", "log_probs", "entropy"):
        close(getattr(laid_out, name), getattr(plain, name))
    close(laid_out.log_prob(SAMPLE), plain.log_prob(SAMPLE))
    close(laid_out.kl(average), plain.kl(average))
    close(laid_out.entropy_gradient(), plain.entropy_gradient())
    close(laid_out.score(SAMPLE, WEIGHT[..., 0]), plain.score(SAMPLE, WEIGHT[..., 0]))
    for name in ("summed_score", "score_wrt_probs"):
        close(getattr(laid_out, name)(WEIGHT), getattr(plain, name)(WEIGHT))
    for name in ("kl_gradient", "kl_gradient_wrt_probs"):
        close(getattr(laid_out, name)(average), getattr(plain, name)(average))


def test_masked_actions_give_finite_results():
    no = MASKED_LOGIT
    logits = torch.tensor([[1.0, no, 0.5], [no, no, 3.0], [no, no, no]])
    policy, average = Categorical(logits), Categorical(torch.zeros(3, 3))
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    sample = torch.tensor([[2.0], [2.0], [0.0]])
    assert policy.probs[0, 1] == 0
    masked = Categorical(logits + torch.tensor([0.5, 0.0, -0.5]))  # the average policy has the same mask
    for value in (
        policy.entropy,
        policy.entropy_gradient(),
        policy.log_prob(sample),
        policy.score(sample, weight[:, 0]),
        policy.summed_score(weight),
        *(f(other) for f in (policy.kl, policy.kl_gradient) for other in (policy, masked, average)),
        masked.kl(average),
    ):
        assert value.isfinite().all()
    assert (policy.kl(masked)[:2].abs() < 10).all()  # actions that are forbidden in both have no effect
    for value in (policy.score_wrt_probs(weight), policy.kl_gradient_wrt_probs(average)):
        assert value.square().isfinite().all()


def sample_in_numpy(logits, seed=0):
    statistics = np.tile(np.float32(logits), (DRAWS, 1))
    sample = CategoricalFamily(len(logits)).sample(statistics, np.random.default_rng(seed))
    assert sample.shape == (DRAWS, 1) and sample.dtype == np.float32
    return sample[:, 0]


def sample_in_torch(logits, seed=0):
    torch.manual_seed(seed)
    sample = Categorical(torch.tensor([[logits]])).draw_samples(DRAWS)
    assert sample.shape == (DRAWS, 1, 1, 1) and sample.dtype == torch.float32
    return sample.flatten().numpy()


both = pytest.mark.parametrize("draw", [sample_in_numpy, sample_in_torch])


@both
@pytest.mark.parametrize(
    "logits",
    [
        [0.0, 0.0],
        [1.0, -2.0, 0.3, 0.0],
        [-3.0, 2.0, 1.0],
        [900.0, 901.0, 899.5],
        [-900.0, -901.0, -1200.0],
        [0.0, MASKED_LOGIT, 1.0],
    ],
)
def test_samples_follow_the_policy(draw, logits):
    frequency = np.bincount(draw(logits).astype(int), minlength=len(logits)) / DRAWS
    probs = softmax(logits)
    within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))


@both
@pytest.mark.parametrize("masked", [(0,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_masked_actions_are_never_sampled(draw, masked):
    logits = np.zeros(3)
    logits[list(masked)] = MASKED_LOGIT
    sample = np.unique(draw(logits.tolist()))
    if len(masked) < 3:
        assert set(sample) == {0, 1, 2} - set(masked)
    assert set(sample) <= {0, 1, 2}  # also if no action is allowed


def test_an_exponential_sample_of_0_selects_no_forbidden_action():
    class Zero(np.random.Generator):
        def standard_exponential(self, shape, dtype):
            return np.tile(dtype([1, 0, 2]), (shape[0], 1))

    sample = CategoricalFamily(3).sample(np.float32([[0, MASKED_LOGIT, 0], [0, 0, 0]]), Zero(np.random.PCG64(0)))
    assert sample[:, 0].tolist() == [0, 1]


def test_rounding_does_not_select_the_last_actions(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self: self.fill_(1 - 2**-24))
    for seed in range(200):
        logits = torch.cat((3 * random(50, 7, seed=seed).float(), torch.full((50, 2), MASKED_LOGIT)), -1)
        assert Categorical(logits).draw_samples(1).max() <= 6
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self: self.fill_(0))
    assert Categorical(torch.tensor([MASKED_LOGIT, 0.0])).draw_samples(1).item() == 1


def test_each_row_is_sampled_from_its_own_logits_independently():
    rows = np.float32([[0.0, 0.0], [30.0, -30.0], [-30.0, 30.0], [0.0, 0.0]])
    in_numpy = CategoricalFamily(2).sample(np.tile(rows, (2000, 1)), np.random.default_rng(0)).reshape(2000, 4)
    torch.manual_seed(0)
    for sample in (in_numpy, Categorical(torch.from_numpy(rows)).draw_samples(2000).squeeze(-1).numpy()):
        assert (sample[:, 1] == 0).all() and (sample[:, 2] == 1).all()
        assert abs((sample[:, 0] == sample[:, 3]).mean() - 0.5) <= 4 * 0.5 / np.sqrt(2000)
        assert abs((sample[:-1, 0] == sample[1:, 0]).mean() - 0.5) <= 4 * 0.5 / np.sqrt(2000)


def test_the_mode_is_the_most_probable_action():
    branch = CategoricalFamily(3)
    mode = branch.mode(np.float32([[0.0, 2.0, 1.0], [-1.0, -3.0, MASKED_LOGIT]]))
    np.testing.assert_array_equal(mode, np.float32([[1], [0]]))
    assert mode.dtype == np.float32
    assert branch.to_action(mode) is mode


def test_encoded_samples_are_one_hot():
    branch = CategoricalFamily(4)
    assert (branch.size, branch.statistics_size, branch.dimensions, branch.encoded_size) == (1, 4, 1, 4)
    encoded = branch.encode(SAMPLE.float())
    assert encoded.dtype == torch.float32
    close(encoded, one_hot(SAMPLE, 4).float())
    with pytest.raises((RuntimeError, IndexError)):
        branch.encode(torch.full((2, 1), 4.0))


STATISTICS = np.float32([[1.0, -2.0, 0.3, 0.0], [0.5, MASKED_LOGIT, 900.0, -300.0], [MASKED_LOGIT] * 4])


def test_noise_is_a_mixture_with_the_uniform_policy_over_allowed_actions():
    noisy = CategoricalFamily(4).with_noise(STATISTICS, np.float64([0.25, 0.4, 0.4]))
    assert noisy.dtype == np.float32
    np.testing.assert_allclose(softmax(noisy[0]), 0.75 * softmax(STATISTICS[0]) + 0.25 / 4, atol=1e-6)
    np.testing.assert_allclose(softmax(noisy[1]), [0.4 / 3, 0, 0.6 + 0.4 / 3, 0.4 / 3], atol=1e-6)
    np.testing.assert_allclose(np.exp(noisy[:2]).sum(-1), 1, atol=1e-5)  # the noisy statistics are log-probabilities
    np.testing.assert_array_equal(noisy == MASKED_LOGIT, STATISTICS == MASKED_LOGIT)


def test_noise_of_level_0_has_no_effect_and_level_1_is_uniform():
    with np.errstate(all="raise", under="ignore"):
        same, uniform = (CategoricalFamily(4).with_noise(STATISTICS, np.full(3, level)) for level in (0.0, 1.0))
    ours, theirs = (Categorical(torch.from_numpy(s)).log_probs[:2] for s in (same, STATISTICS))
    torch.testing.assert_close(ours[ours > -1e8], theirs[theirs > -1e8], rtol=0, atol=2e-4)
    np.testing.assert_allclose(softmax(uniform[1]), [1 / 3, 0, 1 / 3, 1 / 3], atol=1e-6)
    assert np.isfinite(same).all() and np.isfinite(uniform).all()


def test_noisy_samples_are_random_with_probability_level():
    rng, level = np.random.default_rng(1), 0.3
    logits = np.tile(STATISTICS[:1], (DRAWS, 1))
    policy = CategoricalFamily(4).sample(logits, rng)[:, 0]
    mixture = np.where(rng.random(DRAWS) < level, rng.integers(4, size=DRAWS), policy)
    probs = softmax(CategoricalFamily(4).with_noise(STATISTICS, np.full(3, level))[0])
    within_noise(np.bincount(mixture.astype(int), minlength=4) / DRAWS, probs, np.sqrt(probs * (1 - probs)))


def test_repetition_is_a_mixture_with_one_allowed_action():
    level = np.float32([0.25, 0.4, 0.4])
    for action in range(4):
        with np.errstate(all="raise", under="ignore"):
            mixed = CategoricalFamily(4).with_repetition(STATISTICS, np.full((3, 1), action, np.float32), level)
        assert mixed.dtype == np.float32
        np.testing.assert_allclose(
            softmax(mixed[0]), 0.75 * softmax(STATISTICS[0]) + 0.25 * np.eye(4)[action], atol=1e-6
        )
        p = 0 if action == 1 else 0.4  # a forbidden action is not repeated
        np.testing.assert_allclose(
            softmax(mixed[1]), (1 - p) * softmax(STATISTICS[1]) + p * np.eye(4)[action], atol=1e-6
        )
        np.testing.assert_array_equal(mixed == MASKED_LOGIT, STATISTICS == MASKED_LOGIT)


def test_repetition_of_level_0_has_no_effect():
    same = CategoricalFamily(4).with_repetition(STATISTICS, np.zeros((3, 1), np.float32), np.zeros(3, np.float32))
    np.testing.assert_allclose(softmax(same[:2]), softmax(STATISTICS[:2]), atol=1e-6)
    np.testing.assert_array_equal(same[2], STATISTICS[2])
