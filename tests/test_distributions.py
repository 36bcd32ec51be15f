import numpy as np
import pytest
import torch

from algorithm.distributions import Categorical
from tests.oracles import softmax


def random_logits(*shape, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


LOGITS, AVERAGE, WEIGHT = (random_logits(5, 2, 4, seed=seed) for seed in (1, 2, 3))
ACTION = torch.from_numpy(np.random.default_rng(0).integers(4, size=(5, 2)))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def gradient(function, at):
    """The gradient of a sum over rows, by autograd."""
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]


def kl_from_average(log_probs):
    average = AVERAGE.log_softmax(-1)
    return (average.exp() * (average - log_probs)).sum(-1)


def test_values_equal_torch_distributions():
    policy, theirs = Categorical(LOGITS), torch.distributions.Categorical(logits=LOGITS)
    average = torch.distributions.Categorical(logits=AVERAGE)
    close(policy.probs, theirs.probs)
    close(policy.log_probs, theirs.logits)
    close(policy.log_prob(ACTION), theirs.log_prob(ACTION))
    close(policy.entropy, theirs.entropy())
    close(policy.kl(Categorical(AVERAGE)), torch.distributions.kl_divergence(average, theirs))
    close(policy.expectation(WEIGHT), (theirs.probs * WEIGHT).sum(-1))


def test_gradients_in_logits_equal_autograd():
    policy = Categorical(LOGITS)
    close(policy.score(WEIGHT), gradient(lambda x: WEIGHT * x.log_softmax(-1), LOGITS))
    close(policy.entropy_gradient(), gradient(lambda x: -x.softmax(-1) * x.log_softmax(-1), LOGITS))
    close(policy.kl_gradient(Categorical(AVERAGE)), gradient(lambda x: kl_from_average(x.log_softmax(-1)), LOGITS))


def test_gradients_in_probabilities_equal_autograd():
    policy = Categorical(LOGITS)
    probs = LOGITS.softmax(-1)
    close(policy.score_in_probs(WEIGHT), gradient(lambda p: WEIGHT * p.log(), probs))
    close(policy.kl_gradient_in_probs(Categorical(AVERAGE)), gradient(lambda p: kl_from_average(p.log()), probs))


def test_a_step_in_probabilities_reaches_the_logits_along_policy_minus_average():
    policy, average = Categorical(LOGITS), Categorical(AVERAGE)
    kappa = random_logits(5, 2, 1, seed=4).abs()
    step = policy.score_in_probs(WEIGHT) - kappa * policy.kl_gradient_in_probs(average)
    reaching = gradient(lambda x: step * x.softmax(-1), LOGITS)
    close(reaching, policy.score(WEIGHT) - kappa * policy.kl_gradient(average))


def test_the_layout_in_memory_does_not_matter():
    by_action = LOGITS.movedim(-1, 0).contiguous().movedim(0, -1)
    assert not by_action.is_contiguous()
    plain, laid_out, average = Categorical(LOGITS), Categorical(by_action), Categorical(AVERAGE)
    for name in ("probs", "log_probs", "entropy"):
        close(getattr(laid_out, name), getattr(plain, name))
    close(laid_out.log_prob(ACTION), plain.log_prob(ACTION))
    close(laid_out.kl(average), plain.kl(average))
    close(laid_out.entropy_gradient(), plain.entropy_gradient())
    for name in ("score", "score_in_probs"):
        close(getattr(laid_out, name)(WEIGHT), getattr(plain, name)(WEIGHT))
    for name in ("kl_gradient", "kl_gradient_in_probs"):
        close(getattr(laid_out, name)(average), getattr(plain, name)(average))


def test_some_rows_of_a_policy_are_the_policy_of_those_rows():
    policy = Categorical(LOGITS)
    for _ in range(2):  # before and after its probabilities are known
        part = policy.rows(slice(1, 4))
        close(part.statistics, LOGITS[1:4])
        close(part.probs, LOGITS[1:4].softmax(-1))
        close(part.log_probs, LOGITS[1:4].log_softmax(-1))
        assert policy.probs.shape == LOGITS.shape


def test_masked_actions_keep_everything_finite():
    logits = torch.tensor([[1.0, -1e9, 0.5], [-1e9, -1e9, 3.0]])
    policy, average = Categorical(logits), Categorical(torch.zeros(2, 3))
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])
    assert policy.probs[0, 1] == 0 and policy.entropy.isfinite().all()
    for value in (policy.score(weight), policy.entropy_gradient(), policy.kl_gradient(average), policy.kl(policy)):
        assert value.isfinite().all()
    for value in (policy.score_in_probs(weight), policy.kl_gradient_in_probs(average)):
        assert value.square().isfinite().all()


DRAWS = 20000


@pytest.mark.parametrize(
    "logits",
    [
        [0.0, 0.0],
        [1.0, -2.0, 0.3, 0.0],
        [-3.0, 2.0, 1.0],
        [900.0, 901.0, 899.5],
        [-900.0, -901.0, -1200.0],
    ],
)
def test_samples_follow_the_policy(logits):
    statistics = np.tile(np.float32(logits), (DRAWS, 1))
    sample = Categorical.sample(statistics, np.random.default_rng(0))
    assert sample.shape == (DRAWS, 1) and sample.dtype == np.float32
    probs = softmax(logits)
    frequency = np.bincount(sample[:, 0].astype(int), minlength=len(logits)) / DRAWS
    assert (np.abs(frequency - probs) <= 3 * np.sqrt(probs * (1 - probs) / DRAWS)).all()


@pytest.mark.parametrize("masked", [(0,), (2,), (0, 1), (1, 2), (0, 2)])
def test_masked_actions_are_never_drawn(masked):
    statistics = np.zeros((DRAWS, 3), np.float32)
    statistics[:, masked] = -1e9
    sample = Categorical.sample(statistics, np.random.default_rng(0))
    assert set(np.unique(sample)) == {0, 1, 2} - set(masked)


def test_each_row_is_drawn_from_its_own_logits_independently():
    statistics = np.tile(np.float32([[0.0, 0.0], [30.0, -30.0], [-30.0, 30.0], [0.0, 0.0]]), (2000, 1))
    sample = Categorical.sample(statistics, np.random.default_rng(0)).reshape(2000, 4)
    assert (sample[:, 1] == 0).all() and (sample[:, 2] == 1).all()
    assert abs((sample[:, 0] == sample[:, 3]).mean() - 0.5) <= 3 * 0.5 / np.sqrt(2000)


def test_the_mode_is_the_most_probable_action():
    mode = Categorical.mode(np.float32([[0.0, 2.0, 1.0], [-1.0, -3.0, -1e9]]))
    np.testing.assert_array_equal(mode, np.float32([[1], [0]]))
    assert mode.dtype == np.float32
    assert Categorical.to_action(mode) is mode
