import numpy as np
import pytest
import torch

from algorithm.returns import reverse_scan
from tests.oracles import reverse_loop


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 17, 32, 50])
def test_scan_equals_a_loop_with_zeros_in_the_coefficients(rows):
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(rows, 3)), rng.normal(size=(rows - 1, 3)) * (rng.random((rows - 1, 3)) < 0.8)
    scanned = reverse_scan(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(scanned, reverse_loop(a, b), rtol=0, atol=1e-10)


def test_scan_accepts_any_number_of_batch_axes():
    rng = np.random.default_rng(0)
    for shape in [(), (2,), (2, 3)]:
        a, b = rng.normal(size=(6, *shape)), rng.normal(size=(5, *shape))
        scanned = reverse_scan(torch.from_numpy(a), torch.from_numpy(b)).numpy()
        np.testing.assert_allclose(scanned, reverse_loop(a, b), rtol=0, atol=1e-10)


def test_scan_does_not_change_its_arguments():
    a, b = torch.ones(9, 2), torch.full((8, 2), 0.5)
    reverse_scan(a, b)
    assert a.eq(1).all() and b.eq(0.5).all()


def test_scan_is_differentiable():
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(n, 2))).requires_grad_() for n in (6, 5))
    assert torch.autograd.gradcheck(reverse_scan, (a, b))
