"""Targets: tensors in, [T, B] out. Nothing here reduces over rows or detaches."""

from algorithm.returns.retrace import retrace
from algorithm.returns.scan import reverse_scan

__all__ = ["retrace", "reverse_scan"]
