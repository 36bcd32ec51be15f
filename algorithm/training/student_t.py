"""Quantiles of Student's t, for 95% confidence intervals of means."""

import numpy as np

# Half the width of an interval, in standard errors, by the number of degrees of freedom. Between two of them,
# 1 / degrees is interpolated, which is exact to two decimals.
DEGREES_OF_FREEDOM = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, np.inf])
T_QUANTILES = np.array(
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.306, 2.228, 2.131, 2.086, 2.042, 2.000, 1.980, 1.960]
)


def compute_t_quantile(freedom: int) -> float:
    """Return half the width of a 95% confidence interval, in standard errors, for this number of degrees of freedom."""
    return float(np.interp(1 / freedom, 1 / DEGREES_OF_FREEDOM[::-1], T_QUANTILES[::-1]))
