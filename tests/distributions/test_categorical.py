import numpy as np
import pytest
import torch

from algorithm.distributions import MASKED_LOGIT, Categorical, CategoricalFamily
from tests.distributions.oracles import DRAWS, gradient, one_hot, random, within_noise
from tests.distributions.test_contract import in_numpy, in_torch
from tests.oracles import close, softmax

LOGITS, AVERAGE, WEIGHT = (2 * random(5, 2, 4, seed=seed) for seed in (1, 2, 3))
SAMPLE = torch.from_numpy(np.random.default_rng(0).integers(4, size=(5, 2, 1)))


def kl_from_average(log_probs):
    average = AVERAGE.log_softmax(-1)
    return (average.exp() * (average - log_probs)).sum(-1)


def test_sums_over_all_actions_equal_autograd():
    policy = Categorical(LOGITS)
    close(policy.summed_score(WEIGHT), gradient(lambda x: WEIGHT * x.log_softmax(-1), LOGITS))
    close(policy.expectation(WEIGHT), (LOGITS.softmax(-1) * WEIGHT).sum(-1))


def test_the_score_of_a_sample_is_the_summed_score_with_its_weight_only():
    policy, weight = Categorical(LOGITS), WEIGHT[..., 0]
    expected = gradient(lambda x: weight * Categorical(x).log_prob(SAMPLE), LOGITS)
    for sample in (SAMPLE, SAMPLE.float()):
        close(policy.score(sample, weight), expected)
    close(policy.summed_score(one_hot(SAMPLE, 4) * weight.unsqueeze(-1)), expected)


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
    policy = Categorical(torch.tensor([[1.0, no, 0.5], [no, no, 3.0], [no, no, no]]))
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    gradients = policy.score_wrt_probs(weight), policy.kl_gradient_wrt_probs(Categorical(torch.zeros(3, 3)))
    for value in (policy.summed_score(weight), *gradients):
        assert value.square().isfinite().all()


@pytest.mark.parametrize("draw", [in_numpy, in_torch])
@pytest.mark.parametrize(
    "logits",
    [
        [900.0, 901.0, 899.5],
        [-900.0, -901.0, -1200.0],
        [MASKED_LOGIT, 0.0, 1.0],
        [0.0, 1.0, MASKED_LOGIT],
        [0.0, MASKED_LOGIT, MASKED_LOGIT],
        [MASKED_LOGIT, MASKED_LOGIT, 0.0],
        [MASKED_LOGIT] * 3,
    ],
)
def test_samples_of_extreme_and_forbidden_logits_follow_the_policy(draw, logits):
    sample = draw(CategoricalFamily(3), np.float32([logits])).flatten()
    probs = softmax(logits)
    frequency = np.bincount(sample.astype(int), minlength=3) / DRAWS
    assert len(frequency) == 3
    if max(logits) > MASKED_LOGIT:  # otherwise any action
        within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))


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


STATISTICS = np.float32([[1.0, -2.0, 0.3, 0.0], [0.5, MASKED_LOGIT, 900.0, -300.0], [MASKED_LOGIT] * 4])


def test_noise_and_repetition_of_extreme_and_forbidden_logits():
    family, level = CategoricalFamily(4), np.float32([0.25, 0.4, 0.4])
    with np.errstate(all="raise", under="ignore"):
        noisy = family.with_noise(STATISTICS, level)
        repeating = family.with_repetition(STATISTICS, np.zeros((3, 1), np.float32), level)
    np.testing.assert_allclose(softmax(noisy[1]), [0.4 / 3, 0, 0.6 + 0.4 / 3, 0.4 / 3], atol=1e-6)
    np.testing.assert_allclose(softmax(repeating[1]), [0.4, 0, 0.6, 0], atol=1e-6)
    for mixed in (noisy, repeating):
        np.testing.assert_allclose(np.exp(mixed[:2]).sum(-1), 1, atol=1e-5)  # log-probabilities
        np.testing.assert_array_equal(mixed == MASKED_LOGIT, STATISTICS == MASKED_LOGIT)
