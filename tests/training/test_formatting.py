from math import inf, nan

import pytest

from algorithm.training.formatting import format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.955, "0.955"),
        (-0.955, "-0.955"),
        (0.5, "0.500"),
        (0.0021449, "0.00214"),
        (0.0, "0.00"),
        (1.0, "1.000"),
        (9.99961, "10.00"),
        (-10.5, "-10.50"),
        (478.25, "478.2"),
        (999.96, "1,000"),
        (12_345.6, "12,346"),
        (-1_234_567.8, "-1,234,568"),
        (3.21e12, "3.21e+12"),
        (inf, "inf"),
        (nan, "-"),
        (None, "-"),
    ],
)
def test_three_or_four_significant_digits(value, text):
    assert format_number(value) == text
