"""Numbers as people read them."""

from __future__ import annotations

from math import floor, isfinite, isnan, log10

UNKNOWN = "-"
MAX_EXACT = 1e9  # numbers below this show all digits before the point


def format_number(value: float | None) -> str:
    """Return `value` with four significant digits, three below 1; a dash for None and NaN.

    Digits before the point are never rounded away: 0.955, 12.35, 478.2, 12,346.
    """
    if value is None or isnan(value):
        return UNKNOWN
    size = abs(float(f"{value:.4g}"))
    if size < 1:
        return f"{value:#.3g}"
    if size >= MAX_EXACT or not isfinite(size):
        return f"{value:.4g}"
    return f"{value:,.{max(0, 3 - floor(log10(size)))}f}"
